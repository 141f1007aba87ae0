"""The documents that a run has met, on disk, so that memory does not grow with the corpus; finds what it lacks.

What goes is a difference of id sets, never "what was not stamped": stamping the kept and deleting the rest destroys
good points as soon as one layer ignores the stamp. Here a point goes only if it carries our payload, its id is the one
that this payload gives, and the corpus, read to its end, lacks it.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, Self

from care_qdrant.contracts.payload import canonical_json
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.readable import PointId
from care_qdrant.types import CARE_KEY, Document, point_id

Verdict = Literal["new", "same", "other"]
Kind = Literal["kept", "surplus", "missing"]
OTHER_CONTENT = "an earlier row has this id and other content"
"""Why the later one of two rows with one id is rejected."""
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

    def _row(self, query: str, key: bytes) -> tuple[int] | None:
        with closing(self._database.execute(query, (key,))) as cursor:
            row: tuple[int] | None = cursor.fetchone()
            return row


def _key(document_id: str) -> bytes:
    return blake2b(document_id.encode(), digest_size=16).digest()


@dataclass(slots=True)
class Stale:
    """Stored points of ingestion that the corpus, read to its end, does not have."""

    kept: int = 0
    """Points that the corpus has."""
    surplus: int = 0
    """Chunks with a number that their document, which the corpus has, does not reach."""
    missing: int = 0
    """Points of documents that the corpus does not have, or that were rejected."""
    examples: list[str] = field(default_factory=list)
    """First documents of the missing points."""


def count_stale(collection: Collection, seen: Seen, *, in_shard: Callable[[str], bool]) -> Stale:
    """Count the stored points of ingestion that the corpus has, and those that it lacks."""
    stale = Stale()
    first: dict[str, None] = {}
    for points in _points(collection, in_shard):
        for document, number in points.values():
            kind = _kind(seen, document, number)
            setattr(stale, kind, getattr(stale, kind) + 1)
            if kind == "missing" and len(first) < EXAMPLES:
                first[document] = None
    stale.examples = list(first)
    return stale


def delete_stale(collection: Collection, seen: Seen, kind: Kind, *, in_shard: Callable[[str], bool]) -> int:
    """Delete stale points of one kind; return their number.

    A killed run, or two concurrent ones with different chunking, can leave surplus chunks behind that no chunk before
    them leads to.
    """
    deleted = 0
    for points in _points(collection, in_shard):
        gone = [point for point, chunk in points.items() if _kind(seen, *chunk) == kind]
        collection.delete(gone)
        deleted += len(gone)
    return deleted


def _kind(seen: Seen, document_id: str, number: int) -> Kind:
    chunks = seen.chunks(document_id) or 0
    return "kept" if number < chunks else "surplus" if chunks else "missing"


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
