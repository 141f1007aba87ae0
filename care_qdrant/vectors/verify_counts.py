"""Counts points by what their payloads record about a vector, and samples points whose vectors are then checked."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import itemgetter
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.contracts.layouts import Layout
from care_qdrant.contracts.payload import stored_hash
from care_qdrant.contracts.stand_in import stand_ins
from care_qdrant.corpus.chunking import count_or_fail
from care_qdrant.encoders import TokenCounter
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.readable import PointId, place_in_order
from care_qdrant.vectors.points import (
    MOST_UNREADABLE,
    Characters,
    expected_hash,
    is_unreadable,
    other_text_field,
    stored_text,
)
from care_qdrant.vectors.verify_report import VerifyReport

_SEED = 20260413

Sample = list[tuple[models.ShardKey | None, PointId, Mapping[str, Any]]]
"""Points with their payloads, and the key of their shards: those of two keys may each have a point of one id."""
_Drawn = tuple[bytes, models.ShardKey | None, PointId, Mapping[str, Any]]
"""Candidate for the sample: its sort key in the random order of all points, and the rest as in `Sample`."""


@dataclass(slots=True)
class _Count:
    """A count of points by what their payloads record of a vector, with samples of them."""

    layout: Layout
    vector_name: str
    makers: Sequence[str]
    """Makers in the vector's hashes, which the texts complete."""
    learned: frozenset[str]
    """Fingerprints of the learned encoders that stood in for the vector's model."""
    is_attached: bool
    sparse: SparseContract | None
    """Contract of a BM25 vector, which a text without terms does not need; None for a dense vector."""
    counter: TokenCounter
    """Tokenizer of the model: a text on which it fails gets no vector."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of points, by field of the report."""
    unreadable: list[PointId] = field(default_factory=list)
    claims: list[_Drawn] = field(default_factory=list)
    """Points whose hash says that the vector was made from their text."""
    silent: list[_Drawn] = field(default_factory=list)
    """Points that have the vector without a hash of its text."""

    def add(self, page: Sequence[models.Record], is_there: bool, shard_key: models.ShardKey | None) -> None:
        """Count points which all have the vector, or all lack it."""
        layout = self.layout
        counts, lacking = self.counts, dict[PointId, str]()
        for record in page:
            payload = record.payload or {}
            stored = stored_hash(payload, self.vector_name)
            standing_in = self.learned.intersection(stand_ins(payload))
            made_by = (*self.makers, *standing_in)
            expected = [expected_hash(layout, payload, self.vector_name, maker) for maker in made_by]
            counts["points"] += 1
            if expected[0] is None:
                if is_unreadable(layout, payload):
                    self.unreadable.append(record.id)
                counts["text_gone"] += stored is not None and is_there
                counts["written_by_others"] += stored is None and is_there
                counts["in_other_field"] += other_text_field(layout, payload) is not None
                continue
            if not is_there:  # a hash means nothing then
                text = stored_text(layout, payload)
                lacking |= {record.id: text} if self.sparse is None or self.sparse.has_terms(text) else {}
                continue
            counts["with_text"] += 1
            counts["without_vector"] += stored is None and self.is_attached
            counts["without_hash"] += stored is None
            counts["outdated"] += stored is not None and stored not in expected
            counts["stand_ins"] += bool(standing_in) and stored in expected
            if stored is None or stored in expected[: len(self.makers)]:
                drawn = self.silent if stored is None else self.claims
                drawn.append((place_in_order(record.id, _SEED), shard_key, record.id, payload))
        read = count_or_fail([*lacking.values()], self.counter) if lacking else []
        unread = [point_id for point_id, tokens in zip(lacking, read, strict=True) if isinstance(tokens, str)]
        self.unreadable += unread
        counts["with_text"] += len(lacking) - len(unread)
        counts["without_vector"] += len(lacking) - len(unread)


def count_points(
    collection: Collection,
    report: VerifyReport,
    layout: Layout,
    makers: Sequence[str],
    size: int,
    counter: TokenCounter | None = None,
) -> Sample:
    """Fill in the counts of a report; return a sample of the points whose vector should be correct.

    Args:
        collection: The collection, of which all points are read.
        report: The report, which names the vector.
        layout: Layout of the payloads.
        makers: Makers in the vector's hashes, which the texts complete.
        size: Largest number of points to draw.
        counter: Tokenizer of the model; None counts texts on which it fails among those that lack the vector.
    """
    made = collection.schema.contracts.get(report.vector_name)
    sparse = made if isinstance(made, SparseContract) else None
    learned = frozenset(collection.schema.stand_ins.get(report.vector_name, ()))
    tally = _Count(layout, report.vector_name, makers, learned, report.is_attached, sparse, counter or Characters())
    has_vector = models.HasVectorCondition(has_vector=report.vector_name)
    with_vector, without = models.Filter(must=[has_vector]), models.Filter(must_not=[has_vector])
    for part, (where, is_there) in product(collection.parts(), ((with_vector, True), (without, False))):
        for page in part.scroll(where=where):
            tally.add(page, is_there, part.shard_key)
            # The first points in the random order of all points.
            tally.claims, tally.silent = (
                heapq.nsmallest(size, drawn, key=itemgetter(0)) for drawn in (tally.claims, tally.silent)
            )
            del tally.unreadable[MOST_UNREADABLE:]
    for name, number in tally.counts.items():
        setattr(report, name, number)
    report.unreadable = tally.unreadable
    report.covered = collection.count_with_vector(report.vector_name)
    drawn = tally.claims if report.is_attached else tally.claims + tally.silent
    return [(shard_key, point_id, payload) for _, shard_key, point_id, payload in drawn]
