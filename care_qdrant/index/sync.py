"""Deletes what the corpus no longer has: a difference of id sets, never "what was not stamped".

Stamping the kept and deleting the rest destroys good points as soon as one layer ignores the stamp. Here a point goes
only if it carries our payload, its id is the one that this payload gives, and the corpus, read to its end, lacks it.
"""

from collections.abc import Callable, Iterator

from care_qdrant.errors import InputError
from care_qdrant.index.seen import Seen
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.types import CARE_KEY, point_id

EXAMPLES = 3
"""Documents of deleted points that a report names."""


def delete_missing(
    collection: Collection, seen: Seen, *, in_shard: Callable[[str], bool], max_fraction: float, dry_run: bool
) -> tuple[int, list[str]]:
    """Delete the points of documents that the corpus does not have.

    Two passes: the first only counts, so that nothing is deleted where the guard would stop it.
    """
    stored = missing = 0
    first: dict[str, None] = {}
    for points in _points(collection, in_shard):
        stored += len(points)
        gone = [document for document, number in points.values() if not seen.has_chunk(document, number)]
        missing += len(gone)
        first |= dict.fromkeys(gone[: EXAMPLES if len(first) < EXAMPLES else 0])
    examples = list(first)[:EXAMPLES]
    if missing > max_fraction * stored:
        done = "this was a dry run" if dry_run else "the corpus is stored"
        raise InputError(
            f"collection {collection.name!r}: {missing:,} of {stored:,} points ({missing / stored:.0%}), as those of "
            f"{', '.join(examples)}, are not in the corpus, more than the {max_fraction:.0%} that --sync may delete; "
            f"{done}, and nothing was deleted. If the corpus is complete, give a larger --max-delete-fraction"
        )
    if missing and not dry_run:
        for points in _points(collection, in_shard):
            collection.delete([point for point, chunk in points.items() if not seen.has_chunk(*chunk)])
    return missing, examples


def delete_surplus_chunks(collection: Collection, seen: Seen, *, in_shard: Callable[[str], bool]) -> int:
    """Delete chunks with a number that their document, which the corpus has, does not reach any more.

    A killed run, or two concurrent ones with different chunking, can leave chunks behind that no chunk before them
    leads to. Documents that the corpus does not have, or that were rejected, are left alone.
    """
    deleted = 0
    for points in _points(collection, in_shard):
        surplus = [point for point, (document, number) in points.items() if number >= (seen.chunks(document) or 2**31)]
        collection.delete(surplus)
        deleted += len(surplus)
    return deleted


def _points(collection: Collection, in_shard: Callable[[str], bool]) -> Iterator[dict[PointId, tuple[str, int]]]:
    """Return the points that ingestion wrote, page by page, each with its document's id and its chunk number."""
    for page in collection.scroll("reading stored ids", payload=["doc_id", f"{CARE_KEY}.chunk"]):
        found: dict[PointId, tuple[str, int]] = {}
        for record in page:
            payload = record.payload or {}
            document_id, number = str(payload.get("doc_id")), (payload.get(CARE_KEY) or {}).get("chunk")
            if number is not None and str(record.id) == point_id(document_id, number) and in_shard(document_id):
                found[record.id] = document_id, number
        yield found
