"""Copies the points of a collection into another one: whole, with their ids, resumable at any moment.

A point is read from both sides and written only where they differ, so that a run which was killed is finished by
running it again, and a run over a finished copy is a full comparison of it.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.metadata import COPY, portable
from care_qdrant.errors import InputError, NotVerified, counted
from care_qdrant.ingestion.reservoir import Reservoir
from care_qdrant.progress import OnProgress
from care_qdrant.qdrant.calls import in_pages
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import tune_embedded
from care_qdrant.qdrant.create import create_like, indexes_of
from care_qdrant.qdrant.point_equality import ROUNDING, Measure, measures, same_point, vectors_of
from care_qdrant.qdrant.readable import PointId
from care_qdrant.qdrant.schema import CollectionSchema, now_noted
from care_qdrant.qdrant.sender import JSON_BYTES_PER_NUMBER, MAX_BYTES, Sender, Write
from care_qdrant.search.tuning import TOP_K

Dense = Mapping[str, models.VectorParams]

_BYTES_PER_PAYLOAD = 4_000
"""Estimated size of a payload; the sender halves a request that the server finds too large."""

LEAST_FRACTION = 0.95
"""Least fraction of known items to find; an approximate search may miss a few, a wrong index misses most."""
POLL_SECONDS = 2.0
INDEX_SECONDS = 7_200.0
"""Longest time to wait for the search index of a copy."""
SAMPLE = 1_000
"""Points of a copy to read back and compare."""


@dataclass(frozen=True, slots=True)
class KnownItems:
    """Number of points that were searched for by their own vectors, and how many of them were found."""

    asked: int
    found: int


def wait_until_indexed(
    collection: Collection, longest_seconds: float = INDEX_SECONDS, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the server has built the search index; before that, it would answer by brute force."""
    info = collection.wait_for_optimizer(longest_seconds, POLL_SECONDS, sleep=sleep)
    if info.status is models.CollectionStatus.RED:
        raise NotVerified(f"collection {collection.name!r}: the server reports {info.optimizer_status}")
    if info.status is models.CollectionStatus.YELLOW:
        raise NotVerified(
            f"collection {collection.name!r}: its index is not built after {longest_seconds / 60:g} minutes; "
            "run the same command again"
        )


def check_known_items(
    source: Collection, target: Collection, vectors: Mapping[str, models.VectorParams], ids: Sequence[PointId]
) -> KnownItems:
    """Check that vectors of the source find their own points when they search the target.

    Dot products, multivectors and sparse vectors are left out: there, another point may rightly come first.
    """
    points = source.retrieve(ids, payload=False, vectors=True)
    asked, recalled, limit = 0, 0, target.limits.top_k(TOP_K)
    for name, params in vectors.items():
        if params.distance is models.Distance.DOT or params.multivector_config is not None:
            continue
        answers = []
        for point_id, record in points.items():
            if (vector := vectors_of(record).get(name)) is None:
                continue
            request = models.QueryRequest(query=vector, using=name or None, limit=limit)
            [hits] = target.search("searching for a known point", [request])
            # Where so many points have the same vector, any of them may come first.
            all_alike = len(hits) == limit and abs(hits[0].score - hits[-1].score) <= ROUNDING
            answers.append(any(hit.id == point_id for hit in hits) or all_alike)
        if sum(answers) < LEAST_FRACTION * len(answers):
            raise NotVerified(
                f"only {counted(sum(answers), 'point', of=len(answers))} of collection {target.name!r} could be found "
                f"by their own vector {name!r} among the first {limit} hits"
            )
        asked, recalled = asked + len(answers), recalled + sum(answers)
    return KnownItems(asked, recalled)


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Settings of a copy."""

    overwrite: bool = False
    """Replace points of the target with other content; without it, the first one stops the copy."""
    delete_others: bool = False
    """Delete points of the target that the source does not have."""
    dry_run: bool = False
    """Compare, and write nothing."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Counts of a copy, or of its dry run. Points of the source are added, changed or unchanged."""

    points: int
    """Number of points in the source, and afterwards in the target."""
    added: int
    changed: int
    """Points that were in the target with other content, and were replaced."""
    unchanged: int
    """Points that were in the target already, for instance from a run that was interrupted."""
    deleted: int
    """Points that only the target had, for instance because the source has deleted them since such a run."""
    compared: int
    """Points that `verify_copy` reads back and compares; none after a dry run."""
    sample: list[PointId]
    """Ids drawn from all points of the source, each with the same probability."""


def copy_note(source: Collection) -> dict[str, Any]:
    """Return the metadata of a collection into which another one is being copied; the end of the copy removes it."""
    return COPY.change({"source": source.name, "started": now_noted()})


def prepare_target(
    source: Collection, target: Collection, schema: CollectionSchema, metadata: Mapping[str, Any]
) -> None:
    """Create the target of a copy, or check the one that an interrupted run left; resumable at any moment."""
    if not target.exists():
        create_like(target, schema, {**metadata, **copy_note(source)})
    target.refresh().require_same(schema, target.count())
    is_unfinished = COPY.find(target.schema.metadata) is not None
    if note := carried(schema, target.schema) if is_unfinished else copy_note(source):
        target.update("noting the copy", metadata=note)
    target.create_indexes(indexes_of(schema))
    tune_embedded(target.client, target.name)


def carried(source: CollectionSchema, target: CollectionSchema) -> dict[str, Any]:
    """Return the change after which an unfinished copy says what its source says now, such as the active vector."""
    after, before = portable(source.metadata), portable(target.metadata)
    return {
        **dict.fromkeys(before.keys() - after),
        **{key: entry for key, entry in after.items() if before.get(key) != entry},
    }


def copy_points(
    source: Collection,
    target: Collection,
    vectors: Dense,
    settings: CopySettings,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Copied:
    """Make the target hold every point of the source."""
    is_new = not (target.exists() and target.count())
    sample = Reservoir[PointId](SAMPLE)
    copy = _Copy(source, target, measures(vectors), settings, is_new, source.count(), on_progress)
    size = _page_size(source if settings.dry_run else target, vectors)
    with Sender(target) as sender:
        for ids in source.ids():
            sample.draw(ids)
            for page in in_pages(ids, size):
                sender.submit(partial(copy.writes, page))
    deleted = 0
    for page in list(ids_beyond(source, target)) if settings.delete_others and not is_new else []:
        if not settings.dry_run:
            target.delete(page)
        deleted += len(page)
    return Copied(
        points=copy.points,
        added=copy.added,
        changed=copy.changed,
        unchanged=copy.points - copy.added - copy.changed,
        deleted=deleted,
        compared=0 if settings.dry_run else len(sample.drawn),
        sample=sample.drawn,
    )


def verify_copy(source: Collection, target: Collection, vectors: Dense, sample: Sequence[PointId]) -> None:
    """Verify that a copy has exactly as many points as its source, and the same ones in a sample.

    A count does not show that documents were edited meanwhile, but an ingestion that has begun leaves its entry.
    """
    source.refresh().require_whole()
    source_points, target_points = source.count(), target.count()
    if source_points != target_points:
        raise NotVerified(
            f"collection {target.name!r} holds {counted(target_points, 'point')}, {source.name!r} {source_points:,}: "
            "points were written or deleted during the copy; stop their writers and run the same command again"
        )
    dense = measures(vectors)
    for page in in_pages(sample, _page_size(target, vectors)):
        originals, copies = source.retrieve(page, vectors=True), target.retrieve(page, vectors=True)
        for point_id, original in originals.items():
            copy = copies.get(point_id)
            if copy is None or not same_point(original, copy, dense):
                raise NotVerified(
                    f"point {point_id!r} of collection {target.name!r} is not what {source.name!r} holds; "
                    "run the same command again"
                )


def ids_beyond(source: Collection, target: Collection) -> Iterator[list[PointId]]:
    """Yield the ids that only the target has, in nonempty lists."""
    for page in (part for ids in target.ids() for part in in_pages(ids, source.limits.page)):
        known = source.retrieve(page, "looking ids up", payload=False)
        if beyond := [point_id for point_id in page if point_id not in known]:
            yield beyond


@dataclass(slots=True)
class _Copy:
    """A copy in progress; `writes` runs in the threads of the sender."""

    source: Collection
    target: Collection
    measures: Mapping[str, Measure]
    settings: CopySettings
    is_new: bool
    total: int
    on_progress: OnProgress
    points: int = 0
    added: int = 0
    changed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def float_below(self) -> float:
        """Bound of the floats that are what is stored: gRPC turns integers from 2^63 on into floats."""
        over_grpc = getattr(self.source.client, "init_options", {}).get("prefer_grpc")
        return 2.0**63 if over_grpc and not self.source.is_embedded else math.inf

    def writes(self, ids: Sequence[PointId]) -> Iterable[Write]:
        """Yield the writes that make the target's points of a page equal to the source's."""
        expected = self.source.retrieve(ids, vectors=True)
        stored = {} if self.is_new else self.target.retrieve([*expected], vectors=True)
        added = [record for point_id, record in expected.items() if point_id not in stored]
        changed = [expected[point_id] for point_id in stored if self._differs(expected[point_id], stored[point_id])]
        for record in [] if self.target.is_embedded else added + changed:
            if not _is_kept(record.payload, self.float_below):
                raise InputError(
                    f"the payload of point {record.id!r} holds a number that the copy would not have: NaN, an infinite "
                    "one, an integer of more than 64 bits or, over gRPC, any from 2^63 on. Change it; for the last, "
                    "unset CARE_GRPC_PORT"
                )
        if changed and not (self.settings.overwrite or self.settings.dry_run):
            raise InputError(
                f"point {changed[0].id!r} is in collection {self.target.name!r} with other content than in the "
                "source; existing points were not changed. Give --overwrite to replace such points"
            )
        if (records := added + changed) and not self.settings.dry_run:
            # Pass the unnamed vector by its (empty) name: a plain list is refused where there are other vectors.
            yield Write(
                [
                    models.PointStruct(id=record.id, vector=vectors_of(record), payload=record.payload)
                    for record in records
                ]
            )
        self._note(len(added), len(changed), len(expected))

    def _differs(self, expected: models.Record, stored: models.Record) -> bool:
        return not same_point(expected, stored, self.measures)

    def _note(self, added: int, changed: int, read: int) -> None:
        with self.lock:
            self.points += read
            self.added += added
            self.changed += changed
            self.on_progress(self.points, self.total)


def _is_kept(value: Any, float_below: float) -> bool:
    """Return whether a server stores all numbers of a payload as they are."""
    if isinstance(value, dict | list):
        return all(_is_kept(inner, float_below) for inner in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, float):
        return abs(value) < float_below
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def _page_size(collection: Collection, vectors: Dense) -> int:
    """Return the number of points of a request of about `MAX_BYTES`, and no more than the server accepts."""
    numbers = sum(vector.size for vector in vectors.values())
    by_bytes = MAX_BYTES // (numbers * JSON_BYTES_PER_NUMBER + _BYTES_PER_PAYLOAD)
    return max(1, min(by_bytes, collection.limits.write))
