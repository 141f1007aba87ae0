"""Remembers which documents a run has met, on disk, so that memory does not grow with the corpus."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from hashlib import blake2b
from typing import Literal, Self

from care_qdrant.qdrant.payload import payload_hash
from care_qdrant.types import Chunk, Document

Verdict = Literal["new", "same", "other"]


class Seen:
    """The ids of a run, each with a hash of its document. Closing it forgets everything."""

    def __init__(self) -> None:
        # An empty name is a private file that SQLite spills to and removes.
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE seen (id BLOB PRIMARY KEY, hash TEXT, chunks INT) WITHOUT ROWID")
        self._database.execute("BEGIN")  # and never end: a fifth less time for each document

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, document: Document) -> Verdict:
        """Note a document: ``same`` if it was there before, ``other`` if another one has its id."""
        key, content = _key(document.id), payload_hash(Chunk(document, document.text))
        insert = "INSERT INTO seen VALUES (?, ?, 0) ON CONFLICT DO NOTHING"
        if self._database.execute(insert, (key, content)).rowcount:
            return "new"
        row = self._row("SELECT hash FROM seen WHERE id = ?", key)
        return "same" if row is not None and row[0] == content else "other"

    def set_chunks(self, chunks: Mapping[str, int]) -> None:
        """Note how many chunks documents have, by document id."""
        update = "UPDATE seen SET chunks = ? WHERE id = ?"
        self._database.executemany(update, [(count, _key(document_id)) for document_id, count in chunks.items()])

    def chunks(self, document_id: str) -> int | None:
        """Return how many chunks a document has: 0 for one that could not be cut, None for one that was not met."""
        row = self._row("SELECT chunks FROM seen WHERE id = ?", _key(document_id))
        return None if row is None else int(row[0])

    def has_chunk(self, document_id: str, number: int) -> bool:
        """Return whether a document was met and has a chunk of this number."""
        return number < (self.chunks(document_id) or 0)

    def _row(self, query: str, key: bytes) -> tuple[str] | tuple[int] | None:
        with closing(self._database.execute(query, (key,))) as cursor:
            row: tuple[str] | tuple[int] | None = cursor.fetchone()
            return row


def _key(document_id: str) -> bytes:
    return blake2b(document_id.encode(), digest_size=16).digest()
