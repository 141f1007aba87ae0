"""Where the rows of an ingestion come from: a file with a rejects file beside it, or documents; checked early."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from care_qdrant.corpus.files import Corpus, RejectsFile, rejects_path
from care_qdrant.corpus.rows import Fields, Reject, Row, check_document
from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError
from care_qdrant.ingestion.reading import WINDOW_DOCUMENTS
from care_qdrant.store.contracts import SparseContract
from care_qdrant.types import Document, embedded_text

FIRST_ROWS = 100
"""Rows of a file that are checked before a collection is created."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows to read, wherever they come from."""

    rows: Iterator[Row | Reject]
    share_read: Callable[[], float | None] = lambda: None
    rejects: RejectsFile | None = None


@contextmanager
def open_source(corpus: str | Path | Iterable[Document], fields: Fields) -> Iterator[Source]:
    """Open a corpus for one reading; the rows are read lazily.

    Args:
        corpus: A file, whose rejected rows go to a file beside it; or documents.
        fields: Names of the parts of a row in a file.
    """
    if isinstance(corpus, str | Path):
        with Corpus(corpus, fields) as file, RejectsFile(rejects_path(corpus)) as rejects:
            yield Source(_readable(iter(file)), lambda: file.share_read, rejects)
    else:
        yield Source(check_document(document, number) for number, document in enumerate(corpus, 1))


def _readable(rows: Iterator[Row | Reject]) -> Iterator[Row | Reject]:
    """Return the rows of a file after a look at the first ones: that they are rows, and that their fields are known.

    Raises:
        InputError: Every one of the first rows is rejected.
    """
    first = list(islice(rows, FIRST_ROWS))
    reasons = Counter(row.reason for row in first if isinstance(row, Reject))
    if first and reasons.total() == len(first):
        ((reason, count),) = reasons.most_common(1)
        raise InputError(
            f"not one of the first {len(first):,} rows can be ingested; {count:,} of them: {reason}. Nothing was "
            "written; where a field has another name, give --id-field, --text-field or --title-field"
        )
    return chain(first, rows)


def require_document(rows: Iterator[Row | Reject], collection: str) -> Iterator[Row | Reject]:
    """Return the rows again after making sure that there is a document to make a collection of.

    Raises:
        InputError: There is none.
    """
    first: list[Row | Reject] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Row):
            return chain(first, rows)
    raise InputError(f"no document is in the corpus, so collection {collection!r} was not made")


def sparse_contract(rows: Iterator[Row | Reject]) -> tuple[SparseContract, Iterator[Row | Reject]]:
    """Return the BM25 constants, the mean length taken from the first documents, and the rows again."""
    first: list[Row | Reject] = []
    texts: list[str] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Row):
            texts.append(embedded_text(row.document.title, row.document.text))
        if len(texts) == WINDOW_DOCUMENTS:
            break
    contract = SparseContract(bm25.ANALYSER, bm25.DEFAULT_K1, bm25.DEFAULT_B, bm25.average_length(texts))
    return contract, chain(first, rows)
