"""Tells how well vectors belong to their texts, without the model that made them.

A model gives texts with the same words near vectors, so the words of a text say about where its vector is: a ridge
regression from the words of reference texts to their vectors is the expectation. The agreement of a vector with its
text is by how many standard deviations it is nearer to what is expected of that text than to what is expected of the
reference texts. Vectors of another model bear no relation to the expectations, in whichever region they are: their
agreement has the mean 0 and the deviation 1. That of each reference point comes from the regression without itself
(in closed form: Rasmussen and Williams 2006, section 5.4.2).

The constants were chosen on seven sources and two models (docs/evidence/experiments.md).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from care_qdrant.encoders.terms.bm25 import DEFAULT_K1
from care_qdrant.types import Vectors

WINDOW = 8
"""Number of points in a row whose mean agreement is judged."""
LEAST_WINDOW = 6
"""Fewest points that are judged where there are no more yet."""
LEAST_AGREEMENT = 1.4
"""Least mean agreement of a window; below, another model made its vectors."""
_COUNTED = (-1.0, 4.0)
"""Range of the agreement that counts, so that no point outweighs the rest of a window, such as the copy of a text."""
_RIDGE = 0.3
_LITTLE = 0.25
"""Fraction of what the others explain of the median reference text, below which a text is explained too little."""
_ERRORS = 4.0
"""Standard errors of a window's mean that have to lie between the reference points and `LEAST_AGREEMENT`."""

Terms = Mapping[int, float]
"""Count of each term of a text, by its index (`bm25.term_counts`)."""


class Expectation:
    """Where the vectors of texts are expected to be, by reference texts and their vectors."""

    def __init__(self, terms: Sequence[Terms], vectors: Vectors) -> None:
        """Fit the regression.

        Args:
            terms: Terms of each reference text.
            vectors: Their vectors, (points, dim), none of them zero.
        """
        frequency = Counter(chain.from_iterable(terms))
        self._columns = {term: column for column, term in enumerate(t for t, count in frequency.items() if count > 1)}
        self._idf = {term: math.log1p((len(terms) - count + 0.5) / (count + 0.5)) for term, count in frequency.items()}
        self._unseen = math.log1p(2 * len(terms))
        self._words, self._vectors = self._features(terms), _unit(vectors)
        kernel = (self._words @ self._words.T).astype(np.float64)
        self._inverse = np.linalg.inv(kernel + _RIDGE * np.eye(len(terms)))
        centred = self._vectors - self._vectors.mean(axis=0)
        self._weights = self._inverse @ centred
        leverage = self._inverse.diagonal()
        self._expected = _unit(centred - self._weights / leverage[:, None])
        self._means = (self._expected @ self._vectors.T).mean(axis=1)
        explained = kernel.diagonal() + _RIDGE - 1 / leverage
        self._least_explained = max(explained.min(), _LITTLE * np.median(explained), 1e-3)
        own = self._agreement(self._expected, self._vectors)
        self.agreement = float(own.mean())
        """Mean agreement of the reference points."""
        self.tells = self.agreement - _ERRORS * float(own.std()) / math.sqrt(WINDOW) >= LEAST_AGREEMENT
        """Whether the words say enough about the vectors for a window to be judged."""

    def judge(self, terms: Sequence[Terms], vectors: Vectors) -> npt.NDArray[np.float64]:
        """Return the agreement of each vector with its text; NaN where the reference texts do not explain the text."""
        kernel = self._features(terms) @ self._words.T
        explained = np.einsum("tr,rs,ts->t", kernel, self._inverse, kernel, optimize=True)
        values = self._agreement(_unit(kernel @ self._weights), _unit(vectors))
        return np.where(explained >= self._least_explained, values, np.nan)

    def _agreement(self, expected: Vectors, vectors: Vectors) -> npt.NDArray[np.float64]:
        # What a text has in common with all vectors, or a vector with all texts, is no evidence.
        others = vectors @ self._expected.T - self._means
        own = np.einsum("td,td->t", expected, vectors) - (expected @ self._vectors.T).mean(axis=1)
        values = (own - others.mean(axis=1)) / np.maximum(others.std(axis=1), 1e-12)
        return np.asarray(np.clip(values, *_COUNTED), dtype=np.float64)

    def _features(self, terms: Sequence[Terms]) -> Vectors:
        """Return the weights of the terms that several reference texts have; rows of length 1 with all terms."""
        rows, squares = np.zeros((len(terms), len(self._columns)), dtype=np.float32), np.zeros(len(terms))
        for number, counts in enumerate(terms):
            for term, count in counts.items():
                weight = self._idf.get(term, self._unseen) * count / (count + DEFAULT_K1)
                squares[number] += weight**2
                if (column := self._columns.get(term)) is not None:
                    rows[number, column] = weight
        return np.asarray(rows / np.sqrt(np.maximum(squares, 1e-12))[:, None], dtype=np.float32)


def foreign_windows(agreement: Sequence[float]) -> Iterator[range]:
    """Yield the windows of points in a row whose vectors another model made, by their agreement."""
    for end in range(LEAST_WINDOW, len(agreement) + 1):
        window = range(max(0, end - WINDOW), end)
        if sum(agreement[place] for place in window) < LEAST_AGREEMENT * len(window):
            yield window


def _unit(rows: npt.NDArray[np.floating]) -> Vectors:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)
