"""Deletes what the corpus no longer has: a difference of id sets, never "what was not stamped".

Stamping the kept and deleting the rest destroys good points as soon as one layer ignores the stamp. Here a point goes
only if it carries our payload, its id is the one that this payload gives, and the corpus, read to its end, lacks it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from qdrant_client import models

from care_qdrant.corpus.seen import Seen
from care_qdrant.errors import InputError
from care_qdrant.ingestion.plan import pages
from care_qdrant.store.limits import read_limits
from care_qdrant.store.payload import CARE_KEY
from care_qdrant.store.points import delete_points
from care_qdrant.store.retry import Collection
from care_qdrant.types import point_id


def delete_missing(
    link: Collection, seen: Seen, *, in_share: Callable[[str], bool], max_share: float, dry_run: bool
) -> int:
    """Delete the points of documents that the corpus does not have, and give how many there were.

    Two passes: the first only counts, so that nothing is deleted where the guard would stop it.

    Args:
        link: The collection.
        seen: Every document of the corpus, with its number of chunks.
        in_share: Says whether a document id belongs to this run's share of the corpus.
        max_share: Largest share of the stored points that may go.
        dry_run: Only count.

    Raises:
        InputError: more than ``max_share`` would go.
    """
    stored, missing, page_size = 0, 0, read_limits(link).page
    for _, is_missing in _points(link, seen, in_share, page_size):
        stored += 1
        missing += is_missing
    if missing > max_share * stored:
        raise InputError(
            f"collection {link.collection!r}: {missing:,} of {stored:,} points ({missing / stored:.0%}) are not in the "
            f"corpus, more than the {max_share:.0%} that --sync may delete; the corpus is stored, and nothing was "
            "deleted. If the corpus is complete, give a larger --max-delete-fraction"
        )
    if missing and not dry_run:
        ids = (point for point, is_missing in _points(link, seen, in_share, page_size) if is_missing)
        for page in pages(ids, page_size):
            delete_points(link, page)
    return missing


def _points(
    link: Collection, seen: Seen, in_share: Callable[[str], bool], page_size: int
) -> Iterator[tuple[str, bool]]:
    """Give the id of each point that ingestion wrote, and whether the corpus lacks it."""
    offset: Any = None
    while True:
        scroll = partial(_scroll, link, offset, page_size)
        records, offset = link.call("reading stored ids", scroll)
        for record in records:
            payload = record.payload or {}
            document_id, number = str(payload.get("doc_id")), (payload.get(CARE_KEY) or {}).get("chunk")
            if number is not None and str(record.id) == point_id(document_id, number) and in_share(document_id):
                yield str(record.id), not seen.has_chunk(document_id, number)
        if offset is None:
            return


def _scroll(link: Collection, offset: Any, page_size: int) -> tuple[list[models.Record], Any]:
    return link.client.scroll(
        link.collection,
        limit=page_size,
        offset=offset,
        with_payload=["doc_id", f"{CARE_KEY}.chunk"],
        with_vectors=False,
    )
