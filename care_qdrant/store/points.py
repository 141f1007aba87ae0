"""Reads the points of a collection by id: which there are, and what they hold."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from qdrant_client import models

from care_qdrant.store.connection import is_embedded
from care_qdrant.store.limits import read_limits
from care_qdrant.store.retry import Collection

PointId = models.ExtendedPointId
IDS_OF_ONE_REQUEST = 1_000


def read_ids(link: Collection) -> Iterator[list[PointId]]:
    """Give the ids of all points, many at a time.

    The embedded database gives all at once: it holds them in memory anyway, and sorts them anew for every page.
    """
    limit = max(1, count_points(link)) if is_embedded(link.client) else read_limits(link).page
    offset: PointId | None = None
    while True:
        records, offset = link.call("reading ids", partial(_scroll, link, limit, offset))
        yield [record.id for record in records]
        if offset is None:
            return


def ids_beyond(source: Collection, target: Collection) -> Iterator[list[PointId]]:
    """Give the ids that the target has and the source has not, in lists that are not empty."""
    for page in (part for ids in read_ids(target) for part in in_pages(ids, IDS_OF_ONE_REQUEST)):
        known = {record.id for record in source.call("looking ids up", partial(_retrieve, source, page, False))}
        if beyond := [point_id for point_id in page if point_id not in known]:
            yield beyond


def read_points(link: Collection, ids: Sequence[PointId]) -> dict[PointId, models.Record]:
    """Give whole points by id; one that is not there is left out."""
    records = link.call(f"reading {len(ids)} points", partial(_retrieve, link, ids, True))
    return {record.id: record for record in records}


def count_points(link: Collection) -> int:
    """Give the exact number of points."""
    return link.call("counting", lambda: link.client.count(link.collection, exact=True)).count


def delete_points(link: Collection, ids: Sequence[PointId]) -> None:
    """Delete points by id; those that are not there do not matter."""
    selector = models.PointIdsList(points=list(ids))
    link.write(
        f"deleting {len(ids)} points", lambda: link.client.delete(link.collection, points_selector=selector, wait=True)
    )


def in_pages(ids: Sequence[PointId], size: int) -> Iterator[Sequence[PointId]]:
    """Cut ids into runs of at most ``size``."""
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _scroll(link: Collection, limit: int, offset: PointId | None) -> tuple[list[models.Record], Any]:
    return link.client.scroll(link.collection, limit=limit, offset=offset, with_payload=False, with_vectors=False)


def _retrieve(link: Collection, ids: Sequence[PointId], whole: bool) -> list[models.Record]:
    return link.client.retrieve(link.collection, list(ids), with_payload=whole, with_vectors=whole)
