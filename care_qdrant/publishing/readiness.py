"""Whether a collection that was written may be searched: its index is built, and its points are found by it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qdrant_client import models

from care_qdrant.errors import NotVerified
from care_qdrant.store.point_equality import ROUNDING, vectors_of
from care_qdrant.store.points import PointId, read_points
from care_qdrant.store.retry import Collection

TOP_K = 10
LEAST_SHARE = 0.95
"""Of known items; a graph that is searched approximately may miss a few, an index that is wrong misses most."""
POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class KnownItems:
    """How many points their own vectors found."""

    asked: int
    found: int


def wait_until_indexed(
    link: Collection, longest_seconds: float, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the server has built the search index; before that, it would answer by brute force.

    Raises:
        NotVerified: it is not done in time, or the server reports a failure.
    """
    deadline = time.monotonic() + longest_seconds
    while True:
        info = link.call("asking for the index", lambda: link.client.get_collection(link.collection))
        if info.status is models.CollectionStatus.RED:
            raise NotVerified(f"collection {link.collection!r}: the server reports {info.optimizer_status}")
        if info.status is not models.CollectionStatus.YELLOW:
            return
        if time.monotonic() >= deadline:
            raise NotVerified(
                f"collection {link.collection!r}: its index is not built after {longest_seconds / 60:g} minutes; "
                "run the same command again, or give a larger --index-minutes"
            )
        sleep(POLL_SECONDS)


def check_known_items(
    source: Collection, target: Collection, vectors: Mapping[str, models.VectorParams], ids: Sequence[PointId]
) -> KnownItems:
    """Search the target with vectors of the source, each of which has to find its own point.

    Dot products, multivectors and sparse vectors are left out: there, another point may rightly come first.

    Args:
        source: Where the vectors are read.
        target: Where they are searched.
        vectors: The dense vectors, by name.
        ids: Points to look for.

    Raises:
        NotVerified: fewer than `LEAST_SHARE` were found under one of the names.
    """
    points = read_points(source, ids)
    asked, found = 0, 0
    for name in (name for name, params in vectors.items() if _finds_itself(params)):
        answers = list(_answers(target, name, points))
        if sum(answers) < LEAST_SHARE * len(answers):
            raise NotVerified(
                f"only {sum(answers)} of {len(answers)} points of collection {target.collection!r} were found by their "
                f"own vector {name!r} among the first {TOP_K} hits"
            )
        asked, found = asked + len(answers), found + sum(answers)
    return KnownItems(asked, found)


def _finds_itself(params: models.VectorParams) -> bool:
    return params.distance is not models.Distance.DOT and params.multivector_config is None


def _answers(target: Collection, name: str, points: Mapping[PointId, models.Record]) -> Iterator[bool]:
    for point_id, record in points.items():
        vector = vectors_of(record).get(name)
        if vector is None:
            continue
        hits = target.call("searching for a known point", partial(_search, target, name, vector))
        yield any(hit.id == point_id for hit in hits) or _is_all_alike(hits)


def _is_all_alike(hits: Sequence[models.ScoredPoint]) -> bool:
    """Say whether so many points have the same vector that any of them may come first."""
    return len(hits) == TOP_K and abs(hits[0].score - hits[-1].score) <= ROUNDING


def _search(target: Collection, name: str, vector: Any) -> list[models.ScoredPoint]:
    return target.client.query_points(
        target.collection, query=vector, using=name or None, limit=TOP_K, with_payload=False
    ).points
