"""Weights of the terms of a query in BM25, learned from questions and the documents that answer them.

BM25 knows how rare a term is among the documents. In a question that misleads: 怎么办 is rare in answers, and says
nothing of what is asked. So a query's terms carry weights of their own, which questions teach (`care_trainer.terms`).
They change the query's vector alone: any collection with BM25 terms by the analyser for Chinese is searched with them
as it is.

The value of a term depends on the question that it is in::

    log value = g + (spread + spread_by_length * (log n - 3.5)) * (g - mean of g) + repetition * log(count of t)

where n is the number of the query's different terms, and g the sum of the term's own weight, of its kind's, and of one
weight for each of the two neighbouring characters: 痛 in 头痛 and 痛 in 痛快 are the same term. A term or a neighbour
that the questions did not have adds 0. With no more than weights of terms, a term counts its weight times its count.
"""

from dataclasses import astuple, dataclass, field
from functools import lru_cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser, find_analyser, is_han
from care_qdrant.encoders.terms.bm25 import query_vector, term_id
from care_qdrant.errors import ModelError
from care_qdrant.types import TermVector

NO_NEIGHBOUR = 1
"""Key of the neighbours of a term that is not Han text: no weight has it."""

Keys = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """The different terms of a query, in the order of their first occurrences, and their neighbours there."""

    ids: list[int]
    """Indices in sparse vectors (`bm25.term_id`)."""
    counts: list[float]
    contexts: list[int]
    """Three keys of each term, one after the other: its kind, the character before it, the character behind it."""

    @classmethod
    def of(cls, text: str, analyser: Analyser = DEFAULT) -> "QueryTerms":
        """Cut a query into terms."""
        counts: dict[int, float] = {}
        first: list[tuple[int, int]] = []
        pairs: dict[int, str] = {}
        for term, position in analyser.placed_terms(text):
            index, length = _indexed(term)
            if index in counts:
                counts[index] += 1.0
            else:
                counts[index] = 1.0
                first.append((length, position))
            if length == 2:
                pairs[position] = term
        contexts: list[int] = []
        # Two characters of a run that are neighbours make a pair, so the pairs show the neighbours of a term.
        for length, position in first:
            if not length:
                contexts += (0, NO_NEIGHBOUR, NO_NEIGHBOUR)
                continue
            before, after = pairs.get(position - 1), pairs.get(position + length - 1)
            kind = length << 3
            contexts += (
                kind,
                (ord(before[0]) << 5 if before else 0) | kind | 1,
                (ord(after[1]) << 5 if after else 0) | kind | 2,
            )
        return cls(list(counts), list(counts.values()), contexts)


@lru_cache(maxsize=1 << 16)
def _indexed(term: str) -> tuple[int, int]:
    """Return a term's index, and how many characters of Han text it is."""
    return term_id(term), len(term) if is_han(term) else 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of the formula that hold for every term; by default, a term counts its weight times its count."""

    repetition: float = 1.0
    """Power of a term's count."""
    spread: float = 0.0
    """Share of a term's distance from the query's mean that is added to it in a query of 33 terms."""
    spread_by_length: float = 0.0
    """Growth of that share with the logarithm of the number of terms."""

    def values(self, logarithms: Numbers, counts: Numbers, rows: npt.NDArray[np.int64]) -> Numbers:
        """Return the values of the terms of queries.

        Args:
            logarithms: g of each term, (terms,).
            counts: Occurrences of each term in its query, (terms,).
            rows: Number of each term's query, (terms,).
        """
        deviations, stretch = self.stretched(logarithms, rows)
        return np.asarray(np.exp(logarithms + stretch * deviations + self.repetition * np.log(counts)))

    def stretched(self, logarithms: Numbers, rows: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """Return each term's deviation from its query's mean, and the share of it that is added, (terms,) both."""
        sizes = np.bincount(rows)
        deviations = logarithms - (np.bincount(rows, logarithms) / np.maximum(sizes, 1))[rows]
        return deviations, self.spread + self.spread_by_length * self.lengthened(sizes[rows])

    @staticmethod
    def lengthened(sizes: npt.NDArray[np.int64]) -> Numbers:
        """Return the logarithm of numbers of terms, less that of 33 terms."""
        return np.asarray(np.log(sizes) - 3.5)


@dataclass(frozen=True, eq=False)
class Table:
    """Logarithms of weights by key; a key that is not there has 0."""

    keys: Keys = field(default_factory=lambda: np.zeros(0, np.uint32))
    """Ascending, (keys,)."""
    logarithms: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def of(self, keys: npt.NDArray[np.integer]) -> Numbers:
        """Return the logarithms of some keys, in their shape."""
        if not len(self.keys):
            return np.zeros(keys.shape)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.logarithms[places], 0.0)


class TermWeights:
    """Weights of the terms of a query, relative to a term that was not seen in training."""

    def __init__(
        self,
        terms: Keys,
        weights: npt.NDArray[np.float32],
        contexts: Table = Table(),
        shape: Shape = Shape(),
    ) -> None:
        """Set the weights.

        Args:
            terms: Indices of terms (`bm25.term_id`), ascending, (terms,).
            weights: Their weights.
            contexts: Weights of the kind and the neighbours of a term, by the keys of `QueryTerms`.
            shape: The other numbers of the formula.
        """
        self._terms = Table(terms, np.log(np.maximum(weights, np.finfo(np.float16).tiny)))
        self._contexts, self._shape = contexts, shape

    def __len__(self) -> int:
        return len(self._terms.keys)

    @classmethod
    def load(cls, path: Path) -> "TermWeights":
        """Read a file of `save`.

        Raises:
            ModelError: It is not such a file, or its terms are from an analyser for another language.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                analyser, terms, weights = str(arrays["analyser"]), arrays["terms"], arrays["weights"]
                contexts, shape = Table(), Shape()
                if "contexts" in arrays:  # not in files of before 2026-11-27
                    contexts = Table(arrays["contexts"], arrays["context_weights"].astype(np.float32))
                    shape = Shape(*arrays["shape"].tolist())
        except (OSError, EOFError, KeyError, TypeError, ValueError, BadZipFile) as error:
            raise ModelError(f"{path}: holds no weights of terms ({error}); make them again") from error
        if (known := find_analyser(analyser)) is None or known.language != DEFAULT.language:
            raise ModelError(
                f"{path}: its terms are from analyser {analyser!r}, expected {DEFAULT.name!r}; make them again "
                "with: care-train terms"
            )
        return cls(terms.astype(np.uint32), weights.astype(np.float32), contexts, shape)

    def save(self, path: Path) -> None:
        """Write the weights in half precision."""
        np.savez_compressed(
            path,
            analyser=np.array(DEFAULT.name),
            terms=self._terms.keys,
            weights=np.exp(self._terms.logarithms).astype(np.float16),
            contexts=self._contexts.keys,
            context_weights=self._contexts.logarithms.astype(np.float16),
            shape=np.array(astuple(self._shape)),
        )

    def query_vector(self, text: str, analyser: Analyser = DEFAULT) -> TermVector:
        """Return a query's weighted term counts; empty for a text without terms.

        The weights are for Chinese terms: with an analyser for another language, return plain counts.
        """
        if analyser.language != DEFAULT.language:
            return query_vector(text, analyser)
        query = QueryTerms.of(text, analyser)
        contexts = np.array(query.contexts, np.uint32).reshape(-1, 3)
        logarithms = self._terms.of(np.array(query.ids, np.uint32)) + self._contexts.of(contexts).sum(axis=1)
        rows = np.zeros(len(query.ids), np.int64)
        values = self._shape.values(logarithms, np.array(query.counts), rows)
        return TermVector(indices=query.ids, values=values.tolist())
