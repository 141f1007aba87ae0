"""The documents that a run has met, on disk, so that memory does not grow with the corpus; deletes all others.

What goes is a difference of id sets, never "what was not stamped": stamping the kept and deleting the rest destroys
good points as soon as one layer ignores the stamp. Here a point goes only if it carries our payload, its id is the one
that this payload gives, and the corpus, read to its end, lacks it.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from hashlib import blake2b
from typing import Literal, Self

from care_qdrant.contracts.payload import canonical_json
from care_qdrant.errors import InputError, counted
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.types import CARE_KEY, Document, point_id

Verdict = Literal["new", "same", "other"]
EXAMPLES = 3
"""Documents of deleted points that a report names."""


class Seen:
    """The ids of a run, each with a hash of its document. Closing it forgets everything."""

    def __init__(self) -> None:
        # An empty name is a private file that SQLite spills to and removes.
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE seen (id BLOB PRIMARY KEY, hash INT, chunks INT) WITHOUT ROWID")
        self._database.execute("BEGIN")  # and never end: a fifth less time for each document

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, document: Document) -> Verdict:
        """Note a document: ``same`` if it was there before, ``other`` if another one has its id."""
        key, content = _key(document.id), hash((document.title, document.text, canonical_json(dict(document.metadata))))
        insert = "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT DO NOTHING"
        if self._database.execute(insert, (key, content)).rowcount:
            return "new"
        row = self._row("SELECT hash FROM seen WHERE id = ?", key)
        return "same" if row is not None and row[0] == content else "other"

    def set_chunks(self, chunks: Mapping[str, int]) -> None:
        """Note how many chunks documents have that are not one: by document id, 0 for one that could not be cut."""
        update = "UPDATE seen SET chunks = ? WHERE id = ?"
        self._database.executemany(update, [(count, _key(document_id)) for document_id, count in chunks.items()])

    def chunks(self, document_id: str) -> int | None:
        """Return how many chunks a document has: 0 for one that could not be cut, None for one that was not met."""
        row = self._row("SELECT chunks FROM seen WHERE id = ?", _key(document_id))
        return None if row is None else row[0]

    def has_chunk(self, document_id: str, number: int) -> bool:
        """Return whether a document was met and has a chunk of this number."""
        return number < (self.chunks(document_id) or 0)

    def _row(self, query: str, key: bytes) -> tuple[int] | None:
        with closing(self._database.execute(query, (key,))) as cursor:
            row: tuple[int] | None = cursor.fetchone()
            return row


def _key(document_id: str) -> bytes:
    return blake2b(document_id.encode(), digest_size=16).digest()


def delete_missing(
    collection: Collection, seen: Seen, *, in_shard: Callable[[str], bool], max_fraction: float, dry_run: bool
) -> tuple[int, list[str]]:
    """Delete the points of documents that the corpus does not have.

    Two passes: the first only counts, so that nothing is deleted where more is missing than may go.
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
            f"collection {collection.name!r}: {counted(missing, 'point', of=stored)} ({missing / stored:.0%}), of "
            f"documents such as {', '.join(examples)}, {'is' if missing == 1 else 'are'} not in the corpus, more than "
            f"the {max_fraction:.0%} that --sync may delete; {done}, and nothing was deleted. If the corpus is "
            "complete, give a larger --max-delete-fraction"
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
