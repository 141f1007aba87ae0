"""From files or documents to the work that they need.

Rows are checked early, duplicates go, long documents are cut, and windows are compared with what is stored.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeGuard

from care_qdrant.corpus.beginnings import Beginnings
from care_qdrant.corpus.files import Corpus, CorpusPath
from care_qdrant.corpus.rejects import RejectsFile, rejects_path
from care_qdrant.corpus.rows import Fields, Reject, check_document
from care_qdrant.corpus.streams import UTF_8
from care_qdrant.errors import InputError
from care_qdrant.index.plan import Plan, make_plan, points_of_other_writers
from care_qdrant.index.seen import Seen
from care_qdrant.index.settings import IngestReport, Shard
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.contracts import SparseContract
from care_qdrant.qdrant.create import PointVectors
from care_qdrant.types import Chunk, Document, embedded_text

logger = logging.getLogger(__name__)

FIRST_ROWS = 100
"""Rows of a file that are checked before a collection is created."""
WINDOW_DOCUMENTS = 4_096
"""Enough for batches of equal lengths to be full; padding is then about 1 %."""
WINDOW_CHARACTERS = 4_000_000
"""A window of long documents is shorter, so that memory does not depend on their length."""

Cut = Callable[[Sequence[Document]], Iterator[list[Chunk] | Reject]]
"""Returns the chunks of each document, in order; or why it cannot be cut or encoded."""

FIRST_REJECTS = 3
"""Rejected rows that the report shows."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows to read, wherever they come from."""

    rows: Iterator[Document | Reject]
    share_read: Callable[[], float | None] = lambda: None
    rejects: RejectsFile | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """How the files of a corpus are read."""

    fields: Fields = field(default_factory=Fields)
    encoding: str = UTF_8
    rejects: Path | None = None
    """File of the rejected rows; None for one beside the corpus, and for none in a dry run."""


@contextmanager
def open_source(
    corpus: CorpusPath | Iterable[Document], reading: Reading, shard: tuple[int, int] = (1, 1), *, dry_run: bool = False
) -> Iterator[Source]:
    """Open a corpus for one reading; the rows are read lazily."""
    if not _is_path(corpus):
        documents: Iterable[Document] = corpus  # type: ignore[assignment]  # no path
        yield Source(check_document(replace(document, line=number)) for number, document in enumerate(documents, 1))
        return
    path = None if dry_run and reading.rejects is None else reading.rejects or rejects_path(corpus, shard)
    with (
        Corpus(corpus, reading.fields, reading.encoding) as file,
        nullcontext() if path is None else RejectsFile(path) as rejects,
    ):
        rows = _readable(iter(file))
        if file.found:
            others = f", the first of {len(file.files):,} files" if len(file.files) > 1 else ""
            logger.info("%s: %s%s", file.files[0].path, file.found[0], others)
        yield Source(rows, lambda: file.share_read, rejects)


def _is_path(corpus: CorpusPath | Iterable[Document]) -> TypeGuard[CorpusPath]:
    if isinstance(corpus, Sequence) and not isinstance(corpus, str):
        return bool(corpus) and isinstance(corpus[0], str | Path)
    return isinstance(corpus, str | Path)


def _readable(rows: Iterator[Document | Reject]) -> Iterator[Document | Reject]:
    """Return the rows of a file after a look at the first ones: that they are rows, and that their fields are known."""
    first = list(islice(rows, FIRST_ROWS))
    reasons = Counter(row.reason for row in first if isinstance(row, Reject))
    if first and reasons.total() == len(first):
        ((reason, count),) = reasons.most_common(1)
        raise InputError(
            f"not one of the first {len(first):,} rows can be ingested; {count:,} of them: {reason}. Nothing was "
            "written; where a field has another name, give --id-field, --text-field or --title-field; for "
            "rows without an id, --id-field :hash"
        )
    return chain(first, rows)


def require_document(rows: Iterator[Document | Reject], collection: str) -> Iterator[Document | Reject]:
    """Return the rows again after making sure that there is a document to make a collection of."""
    first: list[Document | Reject] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Document):
            return chain(first, rows)
    raise InputError(f"no document is in the corpus, so collection {collection!r} was not made")


def sparse_contract(rows: Iterator[Document | Reject]) -> tuple[SparseContract, Iterator[Document | Reject]]:
    """Return the BM25 constants, the mean length taken from the first documents, and the rows again."""
    first: list[Document | Reject] = []
    texts: list[str] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Document):
            texts.append(embedded_text(row.title, row.text))
        if len(texts) == WINDOW_DOCUMENTS:
            break
    return SparseContract.of_texts(texts), chain(first, rows)


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
    beginnings: Beginnings = field(default_factory=Beginnings)

    def plans(self, rows: Iterable[Document | Reject], share_read: Callable[[], float | None]) -> Iterator[Plan]:
        """Return the work of one window after the other."""
        for window in self._windows(rows):
            plan = make_plan(self.collection, self.vectors, self._cut(window), is_new=self.is_new)
            if self.has_others:
                plan.others = points_of_other_writers(self.collection, [row.id for row in window])
            plan.share_read = share_read()
            yield plan
        if (found := self.beginnings.most_common()) is not None:
            self.report.same_beginning, self.report.same_beginning_share = found

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
        if verdict == "new":
            self.beginnings.add(embedded_text(document.title, document.text))
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
