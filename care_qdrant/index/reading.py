"""From rows to the work they need: duplicates out, long documents cut, windows compared with what is stored."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from care_qdrant.corpus.rows import Reject
from care_qdrant.errors import InputError
from care_qdrant.index.plan import Plan, make_plan, points_of_other_writers
from care_qdrant.index.report import IngestReport
from care_qdrant.index.seen import Seen
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import PointVectors
from care_qdrant.types import Chunk, Document

WINDOW_DOCUMENTS = 4_096
"""Enough for batches of equal lengths to be full; padding is then about 1 %."""
WINDOW_CHARACTERS = 4_000_000
"""A window of long documents is shorter, so that memory does not depend on their length."""

Cut = Callable[[Sequence[Document]], Iterator[list[Chunk] | Reject]]
"""Returns the chunks of each document, in order; or why it cannot be cut or encoded."""

FIRST_REJECTS = 3
"""Rejected rows that the report shows."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``of`` disjoint shards of a corpus, counted from 1, by a hash of the document id that never changes."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise InputError(f"shard {self.number}/{self.of}: shards count from 1/{self.of} to {self.of}/{self.of}")

    def has(self, document_id: str) -> bool:
        """Return whether a document belongs to this shard."""
        if self.of == 1:
            return True
        digest = hashlib.sha256(document_id.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes plans; used by one thread."""

    collection: Collection
    vectors: PointVectors
    cut: Cut
    shard: Shard
    is_new: bool
    has_others: bool
    """Whether another writer made points of the collection, which then are looked for."""
    seen: Seen
    report: IngestReport
    on_reject: Callable[[Reject], None]

    def plans(self, rows: Iterable[Document | Reject], share_read: Callable[[], float | None]) -> Iterator[Plan]:
        """Return the work of one window after the other."""
        for window in self._windows(rows):
            plan = make_plan(self.collection, self.vectors, self._cut(window), is_new=self.is_new)
            if self.has_others:
                plan.others = points_of_other_writers(self.collection, [row.id for row in window])
            plan.share_read = share_read()
            yield plan

    def _windows(self, rows: Iterable[Document | Reject]) -> Iterator[list[Document]]:
        window: list[Document] = []
        characters = 0
        for row in filter(None, map(self._accept, rows)):
            window.append(row)
            characters += len(row.text)
            if len(window) == WINDOW_DOCUMENTS or characters > WINDOW_CHARACTERS:
                yield window
                window, characters = [], 0
        if window:
            yield window

    def _accept(self, row: Document | Reject) -> Document | None:
        """Let a row of this shard pass, once."""
        if isinstance(row, Reject):
            self._reject(row)
            return None
        document = row
        if not self.shard.has(document.id):
            return None
        verdict = self.seen.add(document)
        if verdict == "other":
            self._reject(Reject(row.line, "an earlier row has this id and other content", document.id))
        self.report.duplicates += verdict == "same"
        return row if verdict == "new" else None

    def _cut(self, window: Sequence[Document]) -> list[list[Chunk]]:
        documents: list[list[Chunk]] = []
        for chunks in self.cut(window):
            if isinstance(chunks, Reject):
                self._reject(chunks)
            else:
                documents.append(chunks)
        self.seen.set_chunks({chunks[0].document.id: len(chunks) for chunks in documents})
        return documents

    def _reject(self, reject: Reject) -> None:
        self.report.rejected += 1
        if len(self.report.first_rejects) < FIRST_REJECTS:
            self.report.first_rejects.append(f"{reject.file or 'line'} {reject.line}: {reject.reason}")
        self.on_reject(reject)
