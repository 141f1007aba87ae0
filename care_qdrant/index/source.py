"""Where the rows of an ingestion come from: files, with a file for the rejected rows, or documents; checked early."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeGuard

from care_qdrant.corpus.files import Corpus, CorpusPath
from care_qdrant.corpus.rejects import RejectsFile, rejects_path
from care_qdrant.corpus.rows import Fields, Reject, check_document
from care_qdrant.corpus.streams import UTF_8
from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError
from care_qdrant.index.reading import WINDOW_DOCUMENTS
from care_qdrant.qdrant.contracts import SparseContract
from care_qdrant.types import Document, embedded_text

logger = logging.getLogger(__name__)

FIRST_ROWS = 100
"""Rows of a file that are checked before a collection is created."""


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
    contract = SparseContract(bm25.ANALYSER, bm25.DEFAULT_K1, bm25.DEFAULT_B, bm25.average_length(texts))
    return contract, chain(first, rows)
