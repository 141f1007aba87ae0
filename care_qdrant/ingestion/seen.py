"""Records the documents of a run on disk, so that memory does not grow with the corpus; finds stored ones it lacks.

The points to delete are a difference of id sets, never "all points without a stamp": stamping the kept points and
deleting the rest destroys good points as soon as one layer ignores the stamp. Here a point is deleted only if it has
our payload, its id is the one that follows from this payload, and the corpus, read to its end, lacks it.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, Self

from care_qdrant.contracts.payload import canonical_json
from care_qdrant.ingestion.diff import read_stored
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.readable import PointId
from care_qdrant.types import CARE_KEY, Document, point_id

Verdict = Literal["new", "same", "other"]
Kind = Literal["kept", "surplus", "missing"]
OTHER_CONTENT = "an earlier row has this id and other content"
"""Reason to reject the later of two different rows with one id."""
EXAMPLES = 3
"""Documents of deleted points that a report names."""


class Seen:
    """The ids of a run's documents, each with a hash of the document. Closing it discards all of them."""

    def __init__(self) -> None:
        # An empty name is a private file to which SQLite spills, and which it removes.
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE seen (id BLOB PRIMARY KEY, hash INT, chunks INT) WITHOUT ROWID")
        self._database.execute("BEGIN")  # and never commit, which takes a fifth less time per document

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, document: Document) -> Verdict:
        """Record a document; return ``same`` if it is recorded already, ``other`` if a different one has its id."""
        key, content = _key(document.id), hash((document.title, document.text, canonical_json(dict(document.metadata))))
        insert = "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT DO NOTHING"
        if self._database.execute(insert, (key, content)).rowcount:
            return "new"
        row = self._row("SELECT hash FROM seen WHERE id = ?", key)
        return "same" if row is not None and row[0] == content else "other"

    def set_chunks(self, chunks: Mapping[str, int]) -> None:
        """Record numbers of chunks other than one, by document id; 0 for a document that could not be cut."""
        update = "UPDATE seen SET chunks = ? WHERE id = ?"
        self._database.executemany(update, [(count, _key(document_id)) for document_id, count in chunks.items()])

    def chunks(self, document_id: str) -> int | None:
        """Return the number of chunks of a document: 0 if it could not be cut, None if it is not recorded."""
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
    """Counts of the points that ingestion wrote, by whether the corpus, read to its end, has them."""

    kept: int = 0
    """Points that the corpus has."""
    surplus: int = 0
    """Chunks beyond the last chunk of their document, which the corpus has."""
    missing: int = 0
    """Points of documents that the corpus does not have, or that were rejected."""
    examples: list[str] = field(default_factory=list)
    """Ids of the first documents with missing points."""


def count_stale(collection: Collection, seen: Seen, *, in_shard: Callable[[str], bool]) -> Stale:
    """Count the points that ingestion wrote by whether the corpus has them."""
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

    A killed run, or two concurrent ones with different chunking, can leave surplus chunks to which no earlier chunk
    leads. A chunk that the first one of its document counts is of a concurrent run, which has a newer text.
    """
    deleted = 0
    for points in _points(collection, in_shard):
        stale = {point: chunk for point, chunk in points.items() if _kind(seen, *chunk) == kind}
        firsts = [*{point_id(document) for document, _ in stale.values()}] if kind == "surplus" else []
        counts = {id_: stored.chunks for id_, stored in read_stored(collection, firsts).items()}
        gone = [point for point, (document, number) in stale.items() if number >= counts.get(point_id(document), 0)]
        collection.delete(gone)
        deleted += len(gone)
    return deleted


def _kind(seen: Seen, document_id: str, number: int) -> Kind:
    chunks = seen.chunks(document_id) or 0
    return "kept" if number < chunks else "surplus" if chunks else "missing"


def _points(collection: Collection, in_shard: Callable[[str], bool]) -> Iterator[dict[PointId, tuple[str, int]]]:
    """Yield the points that ingestion wrote, page by page, each with its document's id and its chunk number."""
    for page in collection.scroll("reading stored ids", payload=["doc_id", f"{CARE_KEY}.chunk"]):
        chunks: dict[PointId, tuple[str, int]] = {}
        for record in page:
            payload = record.payload or {}
            document_id, number = str(payload.get("doc_id")), (payload.get(CARE_KEY) or {}).get("chunk")
            if number is not None and str(record.id) == point_id(document_id, number) and in_shard(document_id):
                chunks[record.id] = document_id, number
        yield chunks
