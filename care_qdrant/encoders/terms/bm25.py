"""BM25 as a sparse named vector: a Chinese-aware analyser, and the half of the formula that each side knows.

BM25 (Robertson and Zaragoza 2009, eq. 3.15) of a document for a query is a sum over the terms that they share::

    idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / average_length)) * (count of t in the query)

The middle factor is the document's sparse vector, the last one the query's, and Qdrant multiplies the first one in at
search time (``Modifier.IDF``), so it always counts the documents that are there now.

Documents count from their beginning, where they say what they are about: an occurrence at position p counts
1 / (1 + p / lead) in ``tf`` and in ``length``. Positions are those of Han characters and of the other terms.

The analyser, `ANALYSER`, is a part of the collection contract, since both sides must cut alike:

- Unicode NFKC, then lower case. Traditional and simplified forms stay what they are.
- A run of Han characters gives each of its characters and each pair of neighbours: 糖尿病 is 糖, 尿, 病, 糖尿, 尿病.
- A number and its unit are one term, with or without a space: ``5 mg``, ``5mg``; ``6.1 mmol/L``; ``38.5℃``; ``3%``.
- A name of letters, digits and hyphens is one term without its hyphens, so that spellings meet: IL-6 and IL6, HbA1c,
  COVID-19, 5-HT, T790M. A hyphen between two numbers is a range: ``5-10mg`` is 5 and 10mg.
- Everything else separates.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import count, pairwise

import numpy as np
import numpy.typing as npt
from qdrant_client import models

ANALYSER = "zh-char-bigram-1"
"""Name and version; any change to `terms` or `term_id` needs another one."""
VECTOR_NAME = "bm25"
DEFAULT_K1 = 0.4
DEFAULT_B = 0.3
DEFAULT_LEAD = 40.0
"""The three were chosen together on held-out sources (docs/evidence/experiments.md)."""

Numbers = npt.NDArray[np.float64]

_HAN = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_IS_HAN = re.compile(f"[{_HAN}]").match
_WORD = rf"[^\W_{_HAN}]"
_PER = r"(?:/[a-z]+\d?)*"
_UNIT = rf"(?:%|‰|°[cf]?|(?:mmhg|kpa|kcal|kj|bpm|(?:[mμunp]?(?:g|l|mol|iu|u|m)|kg|dl|cm|km|min|h|d){_PER})(?!{_WORD}))"
_TERM = re.compile(
    rf"(?P<han>[{_HAN}]+)"
    rf"|(?P<measure>\d+(?:[./]\d+)*\s?{_UNIT})"
    rf"|(?P<number>\d+(?:[./]\d+)*(?!{_WORD})(?!-[^\W\d_{_HAN}]))"
    rf"|(?P<name>{_WORD}+(?:-{_WORD}+)*)"
)


def terms(text: str) -> Iterator[str]:
    """Return the terms of a text, each as often as it occurs."""
    return (term for term, _ in placed_terms(text))


def placed_terms(text: str) -> Iterator[tuple[str, int]]:
    """Return the terms of a text with their positions, from 0; a pair of characters has that of its first one."""
    position = 0
    for match in _TERM.finditer(unicodedata.normalize("NFKC", text).lower()):
        term = match.group()
        match match.lastgroup:
            case "han":
                yield from zip(term, count(position))
                yield from zip(map("".join, pairwise(term)), count(position))
                position += len(term)
                continue
            case "name":
                yield term.replace("-", ""), position
            case _:
                yield "".join(term.split()), position
        position += 1


def is_han(term: str) -> bool:
    """Return whether a term is a Han character or a pair of them."""
    return _IS_HAN(term) is not None


@lru_cache(maxsize=1 << 16)
def term_id(term: str) -> int:
    """Return the index of a term in every sparse vector: 32 bits of BLAKE2b, the same on every machine.

    Two terms can share an index and then count as one. Of n different terms about n² / 2³³ pairs do: a dozen
    pairs in 300,000 terms, the vocabulary of a large corpus.
    """
    return int.from_bytes(blake2b(term.encode(), digest_size=4).digest(), "big")


def average_length(texts: Iterable[str], *, lead: float | None = DEFAULT_LEAD) -> float:
    """Return the mean length of a text in terms, as `document_vector` with this lead needs it; at least 1."""
    lengths = [sum(term_counts(text, lead=lead).values()) for text in texts]
    return max(1.0, sum(lengths) / max(1, len(lengths)))


def document_vector(
    text: str,
    *,
    average_length: float,
    k1: float = DEFAULT_K1,
    b: float = DEFAULT_B,
    lead: float | None = DEFAULT_LEAD,
) -> models.SparseVector:
    """Return a document's saturated term frequencies; empty for a text without terms.

    Args:
        text: Text of the document, title included.
        average_length: Mean number of terms of a document, fixed for the collection in its contract.
        k1: Saturation of repeated terms: the larger, the longer further occurrences count.
        b: Penalty of long documents, from 0 to 1.
        lead: Position at which a term counts half as much as at the beginning; None counts all alike.
    """
    return weighted(term_counts(text, lead=lead), average_length=average_length, k1=k1, b=b)


def weighted(counts: Mapping[int, float], *, average_length: float, k1: float, b: float) -> models.SparseVector:
    """Return the document vector of term counts, as `document_vector` of their text returns it."""
    found = np.fromiter(counts.values(), np.float64, len(counts))
    length = sum(counts.values())
    weights = saturated(found, length, average_length=average_length, k1=k1, b=b).tolist()
    return models.SparseVector(indices=list(counts), values=weights)


def saturated(
    counts: Numbers,
    lengths: float | Numbers,
    *,
    average_length: float,
    k1: float = DEFAULT_K1,
    b: float = DEFAULT_B,
) -> Numbers:
    """Return what documents' term counts weigh.

    Args:
        counts: Of each term in its document, (terms,).
        lengths: Sum of the document's counts, one for all or (terms,).
        average_length: Mean of the collection.
        k1: As in `document_vector`.
        b: As in `document_vector`.
    """
    return counts * (k1 + 1) / (counts + k1 * (1 - b + b * lengths / average_length))


def query_vector(text: str) -> models.SparseVector:
    """Return a query's term counts; empty for a text without terms."""
    counts = term_counts(text)
    return models.SparseVector(indices=list(counts), values=list(counts.values()))


def term_counts(text: str, *, lead: float | None = None) -> dict[int, float]:
    """Return how often each term occurs, by its index; with a lead, the occurrences weighed by their positions."""
    counts: dict[int, float] = {}
    for term, position in placed_terms(text):
        index = term_id(term)
        counts[index] = counts.get(index, 0.0) + (1.0 if lead is None else 1 / (1 + position / lead))
    return counts
