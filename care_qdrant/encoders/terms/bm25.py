"""BM25 as a sparse named vector: the part of the formula that documents know, and the part that queries know.

BM25 (Robertson and Zaragoza 2009, eq. 3.15) of a document for a query is a sum over the terms that they share::

    idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / average_length)) * (count of t in the query)

The middle factor is the document's sparse vector, the last one the query's, and Qdrant multiplies the first one in at
search time (``Modifier.IDF``), so it always counts the documents that are there now.

Documents count from their beginning, where they say what they are about: an occurrence at position p counts
1 / (1 + p / lead) in ``tf`` and in ``length``. Positions count Han characters and the other terms.

An analyser (`care_qdrant.encoders.terms.analyser`), which the collection contract names, cuts texts into terms.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.types import TermVector

VECTOR_NAME = "bm25"
DEFAULT_K1 = 0.4
DEFAULT_B = 0.3
DEFAULT_LEAD = 40.0
"""The three were chosen together on held-out sources (docs/evidence/experiments.md)."""

Numbers = npt.NDArray[np.float64]


@lru_cache(maxsize=1 << 16)
def term_id(term: str) -> int:
    """Return the index of a term in every sparse vector: 32 bits of BLAKE2b, the same on every machine.

    Two terms can share an index and then count as one. Of n different terms about n² / 2³³ pairs do: a dozen
    pairs in 300,000 terms, the vocabulary of a large corpus.
    """
    return int.from_bytes(blake2b(term.encode(), digest_size=4).digest(), "big")


def average_length(texts: Iterable[str], *, lead: float | None = DEFAULT_LEAD, analyser: Analyser = DEFAULT) -> float:
    """Return the mean length of a text in terms, as `document_vector` with this lead needs it; at least 1."""
    lengths = [sum(term_counts(text, lead=lead, analyser=analyser).values()) for text in texts]
    return max(1.0, sum(lengths) / max(1, len(lengths)))


def document_vector(
    text: str,
    *,
    average_length: float,
    k1: float = DEFAULT_K1,
    b: float = DEFAULT_B,
    lead: float | None = DEFAULT_LEAD,
    analyser: Analyser = DEFAULT,
) -> TermVector:
    """Return a document's saturated term frequencies; empty for a text without terms.

    Args:
        text: Text of the document, title included.
        average_length: Mean number of terms of a document, fixed for the collection in its contract.
        k1: Saturation of repeated terms: the larger, the longer further occurrences count.
        b: Penalty of long documents, from 0 to 1.
        lead: Position at which a term counts half as much as at the beginning; None counts all alike.
        analyser: Analyser of the collection.
    """
    return weighted(term_counts(text, lead=lead, analyser=analyser), average_length=average_length, k1=k1, b=b)


def weighted(counts: Mapping[int, float], *, average_length: float, k1: float, b: float) -> TermVector:
    """Return the document vector of term counts, as `document_vector` of their text returns it."""
    frequencies = np.fromiter(counts.values(), np.float64, len(counts))
    length = sum(counts.values())
    weights = saturated(frequencies, length, average_length=average_length, k1=k1, b=b).tolist()
    return TermVector(indices=list(counts), values=weights)


def saturated(
    counts: Numbers,
    lengths: float | Numbers,
    *,
    average_length: float,
    k1: float = DEFAULT_K1,
    b: float = DEFAULT_B,
) -> Numbers:
    """Return the weights of documents' term counts.

    Args:
        counts: Count of each term in its document, (terms,).
        lengths: Sum of the document's counts, one for all or (terms,).
        average_length: Mean length in the collection.
        k1: As in `document_vector`.
        b: As in `document_vector`.
    """
    return counts * (k1 + 1) / (counts + k1 * (1 - b + b * lengths / average_length))


def query_vector(text: str, analyser: Analyser = DEFAULT) -> TermVector:
    """Return a query's term counts; empty for a text without terms."""
    counts = term_counts(text, analyser=analyser)
    return TermVector(indices=list(counts), values=list(counts.values()))


def term_counts(text: str, *, lead: float | None = None, analyser: Analyser = DEFAULT) -> dict[int, float]:
    """Return how often each term occurs, by its index; with a lead, the occurrences weighed by their positions."""
    counts: dict[int, float] = {}
    for term, position in analyser.placed_terms(text):
        index = term_id(term)
        counts[index] = counts.get(index, 0.0) + (1.0 if lead is None else 1 / (1 + position / lead))
    return counts
