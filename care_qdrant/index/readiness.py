"""Checks whether a new collection may be searched: its index is built, and its points are found by their vectors."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qdrant_client import models

from care_qdrant.errors import NotVerified
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.qdrant.point_equality import ROUNDING, vectors_of

TOP_K = 10
LEAST_FRACTION = 0.95
"""Least fraction of known items to find; an approximate search may miss a few, a wrong index misses most."""
POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class KnownItems:
    """Number of points that were searched for by their own vectors, and of those that were found."""

    asked: int
    found: int


def wait_until_indexed(
    collection: Collection, longest_seconds: float, *, sleep: Callable[[float], None] = time.sleep
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
    """Search the target with vectors of the source, each of which has to find its own point.

    Dot products, multivectors and sparse vectors are left out: there, another point may rightly come first.
    """
    points = source.retrieve(ids, payload=False, vectors=True)
    asked, found = 0, 0
    for name in (name for name, params in vectors.items() if _finds_itself(params)):
        answers = list(_answers(target, name, points))
        if sum(answers) < LEAST_FRACTION * len(answers):
            raise NotVerified(
                f"only {sum(answers)} of {len(answers)} points of collection {target.name!r} were found by their "
                f"own vector {name!r} among the first {TOP_K} hits"
            )
        asked, found = asked + len(answers), found + sum(answers)
    return KnownItems(asked, found)


def _finds_itself(params: models.VectorParams) -> bool:
    return params.distance is not models.Distance.DOT and params.multivector_config is None


def _answers(target: Collection, name: str, points: Mapping[PointId, models.Record]) -> Iterator[bool]:
    for point_id, record in points.items():
        vector = vectors_of(record).get(name)
        if vector is not None:
            request = models.QueryRequest(query=vector, using=name or None, limit=TOP_K)
            [hits] = target.search("searching for a known point", [request])
            yield any(hit.id == point_id for hit in hits) or _is_all_alike(hits)


def _is_all_alike(hits: Sequence[models.ScoredPoint]) -> bool:
    """Return whether so many points have the same vector that any of them may come first."""
    return len(hits) == TOP_K and abs(hits[0].score - hits[-1].score) <= ROUNDING
