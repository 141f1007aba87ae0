"""Reads the rows of a corpus from files or documents, and compares them with the stored points.

Rows are checked early, duplicates dropped, long documents cut, and windows compared with the stored points.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeGuard

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.corpus.endings import Format
from care_qdrant.corpus.files import FIRST_ROWS, Corpus, CorpusPath, all_rejected, typed_fields
from care_qdrant.corpus.rejects import RejectsFile, rejects_path
from care_qdrant.corpus.rows import Fields, Reject, check_document
from care_qdrant.corpus.streams import STDIN, UTF_8
from care_qdrant.encoders.languages import SAMPLED_TEXTS, require_language
from care_qdrant.errors import InputError, counted
from care_qdrant.ingestion.diff import Diff, Orphans, count_others, make_diff
from care_qdrant.ingestion.pipeline import WINDOW_TEXTS
from care_qdrant.ingestion.seen import OTHER_CONTENT, Seen
from care_qdrant.ingestion.settings import DocumentModel, IngestReport, Shard
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import PointVectors
from care_qdrant.types import Chunk, Document, embedded_text

WINDOW_CHARACTERS = 4_000_000
"""Number of characters at which a window of long documents ends before it has `WINDOW_TEXTS` of them."""
# Otherwise memory would grow with the length of the documents.

CutDocument = list[Chunk]
"""All chunks of one document, with their vectors if a bulk job has made them."""
Row = Document | CutDocument | Reject
Cut = Callable[[Sequence[Document]], Iterator[CutDocument | Reject]]
"""Function that cuts documents: it yields for each, in order, its chunks or the reason why it has none."""

logger = logging.getLogger(__name__)

FROM_PROGRAM = "a program"
"""Input that stands for documents that a program passed."""
BEGINNING = " beginning with document "
"""Words behind `FROM_PROGRAM` or `STDIN`, before an id: by this document a later run knows the corpus."""
FIRST_REJECTS = 3
"""Number of rejected rows that a report quotes."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows to read, from files, a program or a bulk job."""

    rows: Iterator[Row]
    share_read: Callable[[], float | None] = lambda: None
    rejects: RejectsFile | None = None
    changed: Sequence[str] = ()
    """Files that were written to while they were read; grows while the rows are read."""
    inputs: Sequence[str] = ()
    """Files and folders that were given, by which a later run recognises the corpus."""
    files: Sequence[str] = ()
    """Files that are read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Fields and encoding with which the files of a corpus are read."""

    fields: Fields = field(default_factory=Fields)
    encoding: str = UTF_8
    rejects: str | Path | None = None
    """File of the rejected rows, which must be free; None for one named after the collection, and for none in a dry
    run."""
    format: Format | None = None
    """Format of standard input and of files whose name has no known ending; None is JSON lines for standard input."""


@contextmanager
def open_source(
    corpus: CorpusPath | Iterable[Document],
    reading: Reading,
    collection: str,
    shard: tuple[int, int] = (1, 1),
    *,
    dry_run: bool = False,
) -> Iterator[Source]:
    """Open a corpus to be read once; the rows are read lazily."""
    if isinstance(corpus, Document):
        raise InputError(f"one document ({corpus.id!r}) is given where several are expected; write [document]")
    if not _is_path(corpus):
        documents: Iterable[Document] = corpus  # type: ignore[assignment]  # no path
        number = 0

        def checked() -> Iterator[Document | Reject]:
            nonlocal number
            for number, document in enumerate(documents, 1):
                if not isinstance(document, Document):
                    raise InputError(
                        f"document {number} is a {type(document).__name__}; expected care_qdrant.Document(id, text)"
                    )
                yield check_document(replace(document, line=number))

        def share_read() -> float | None:
            return number / len(documents) if isinstance(documents, Sized) else None

        inputs, checked_rows = _with_beginning([FROM_PROGRAM], checked())
        yield Source(checked_rows, share_read, inputs=inputs)
        return
    path = None if dry_run and reading.rejects is None else Path(reading.rejects or rejects_path(collection, shard))
    fields = typed_fields(corpus, reading.fields, reading.encoding, reading.format)
    with (
        nullcontext() if path is None else RejectsFile(path) as rejects,
        Corpus(corpus, fields, reading.encoding, reading.format) as file,
    ):
        rows = _readable(iter(file))
        if file.found:
            others = f", the first of {len(file.files):,} files" if len(file.files) > 1 else ""
            logger.info("%s: %s%s", file.files[0].path, file.found[0], others)
        files = [corpus_file.path for corpus_file in file.files]
        inputs, rows = _with_beginning(inputs_of(corpus), rows)
        yield Source(rows, lambda: file.share_read, rejects, file.changed, inputs, files)


def inputs_of(corpus: CorpusPath) -> list[str]:
    """Return the files and folders of a corpus as absolute paths, sorted; URLs stay as given, a pipe is `STDIN`."""
    given = [
        STDIN if Path(path).is_fifo() else str(path)
        for path in ([corpus] if isinstance(corpus, str | Path) else corpus)
    ]
    # A symbolic link such as "current" keeps its name.
    return sorted({path if path == STDIN or "://" in path else os.path.abspath(path) for path in given})  # noqa: PTH100


def _is_path(corpus: CorpusPath | Iterable[Document]) -> TypeGuard[CorpusPath]:
    if isinstance(corpus, Sequence) and not isinstance(corpus, str):
        return bool(corpus) and isinstance(corpus[0], str | Path)
    return isinstance(corpus, str | Path)


def _readable(rows: Iterator[Document | Reject]) -> Iterator[Document | Reject]:
    """Return the rows of a file; refuse it if all of the first rows are rejected, for example for unknown fields."""
    first = list(islice(rows, FIRST_ROWS))
    if (problem := all_rejected(first)) is not None:
        raise InputError(
            f"{problem}. Nothing was written; where a field has another name, give --id-field, --text-field or "
            "--title-field; for rows without an id, --id-field :hash"
        )
    return chain(first, rows)


def _with_beginning(
    inputs: Sequence[str], rows: Iterator[Document | Reject]
) -> tuple[list[str], Iterator[Document | Reject]]:
    """Return the inputs, the first id behind each that has no name of its own, and the rows again."""
    if not {STDIN, FROM_PROGRAM} & {*inputs}:
        return [*inputs], rows
    first = list(islice(rows, 1))
    begun = [
        f"{name}{BEGINNING}{row.id}" if name in (STDIN, FROM_PROGRAM) else name for row in first for name in inputs
    ]
    return begun, chain(first, rows)


def require_document(rows: Iterator[Row], collection: str) -> Iterator[Row]:
    """Return the rows again after making sure that they hold a document for a new collection."""
    first: list[Row] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Document):
            return chain(first, rows)
    reasons = [row.reason for row in first if isinstance(row, Reject)]
    none = f"none of {counted(len(reasons), 'document')} can be ingested: {reasons[0]}" if reasons else "no document"
    is_in = "" if reasons else " is in the corpus"
    raise InputError(f"{none}{is_in}, so collection {collection!r} was not made")


def require_readable(rows: Iterator[Row], model: DocumentModel) -> Iterator[Row]:
    """Return the rows again after checking that the model reads the language of the first documents."""
    first = list(islice(rows, SAMPLED_TEXTS))
    texts = [embedded_text(row.title, row.text) for row in first if isinstance(row, Document)]
    require_language(model.name, model.document_tokenizer, texts)
    return chain(first, rows)


def sparse_contract(rows: Iterator[Row], language: str | None) -> tuple[SparseContract, Iterator[Row]]:
    """Return the BM25 constants of the first documents, in the given or detected language, and the rows again."""
    first: list[Row] = []
    texts: list[str] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Document):
            texts.append(embedded_text(row.title, row.text))
        if len(texts) == WINDOW_TEXTS:
            break
    return SparseContract.of_texts(texts, language), chain(first, rows)


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes diffs of a corpus; used by one thread."""

    collection: Collection
    vectors: PointVectors
    cut: Cut
    """Function called for documents that are not cut yet."""
    shard: Shard
    is_new: bool
    has_others: bool
    """Whether another writer made points of the collection, which are then looked up."""
    seen: Seen
    report: IngestReport
    on_reject: Callable[[Reject], None]
    orphans: Orphans
    """Points whose hashes do not count, since the vectors are lost."""

    def diffs(self, rows: Iterable[Row], share_read: Callable[[], float | None]) -> Iterator[Diff]:
        """Yield the diff of each window in turn."""
        for window in self._windows(rows):
            documents = self._cut(window)
            diff = make_diff(self.collection, self.vectors, documents, is_new=self.is_new, orphans=self.orphans)
            if self.has_others:
                diff.others = count_others(self.collection, [chunks[0].document.id for chunks in documents])
            diff.share_read = share_read()
            yield diff

    def _windows(self, rows: Iterable[Row]) -> Iterator[list[Document | CutDocument]]:
        window: list[Document | CutDocument] = []
        characters = 0
        for row in (accepted for accepted in map(self._accept, rows) if accepted is not None):
            window.append(row)
            characters += len(row.text) if isinstance(row, Document) else sum(len(chunk.text) for chunk in row)
            if len(window) == WINDOW_TEXTS or characters > WINDOW_CHARACTERS:
                yield window
                window, characters = [], 0
        if window:
            yield window

    def _accept(self, row: Row) -> Document | CutDocument | None:
        """Return a row of this shard at its first occurrence; None for other rows, which are counted."""
        if isinstance(row, Reject):
            self.reject(row)
            return None
        document = _document_of(row)
        if not self.shard.has(document.id):
            return None
        verdict = self.seen.add(document)
        if verdict == "other":
            self.reject(Reject.of(document, OTHER_CONTENT))
        self.report.duplicates += verdict == "same"
        return row if verdict == "new" else None

    def _cut(self, window: Sequence[Document | CutDocument]) -> list[CutDocument]:
        documents: list[CutDocument] = []
        numbers: dict[str, int] = {}
        uncut = [row for row in window if isinstance(row, Document)]
        cut = self.cut(uncut) if uncut else iter(())
        for row in window:
            chunks = next(cut) if isinstance(row, Document) else row
            if isinstance(chunks, Reject):
                self.reject(chunks)
                numbers[_document_of(row).id] = 0
            else:
                documents.append(chunks)
                if len(chunks) != 1:
                    numbers[chunks[0].document.id] = len(chunks)
        self.seen.set_chunks(numbers)
        return documents

    def reject(self, reject: Reject) -> None:
        """Count and list a row that is not stored."""
        self.report.rejected += 1
        if len(self.report.first_rejects) < FIRST_REJECTS:
            self.report.first_rejects.append(f"{reject.file or 'line'} {reject.line}: {reject.reason}")
        self.on_reject(reject)


def _document_of(row: Document | CutDocument) -> Document:
    return row if isinstance(row, Document) else row[0].document
