"""Weights of the terms of a query in BM25, learned from questions and the documents that answer them.

BM25 knows how rare a term is among the documents. In a question that misleads: 怎么办 is rare in answers, and says
nothing of what is asked. So a query's terms carry weights of their own, which questions teach (`care_trainer.terms`).
They change the query's vector alone: any collection with BM25 terms of this package's analyser is searched with them as
it is, and a term that the questions did not have keeps the weight 1.
"""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from qdrant_client import models

from care_qdrant.encoders.terms.bm25 import ANALYSER, term_counts
from care_qdrant.errors import ModelError


class TermWeights:
    """Weights of the terms of a query, relative to a term that was not seen in training."""

    def __init__(self, terms: npt.NDArray[np.uint32], weights: npt.NDArray[np.float32]) -> None:
        """Take the indices of terms (`bm25.term_id`), ascending, and their weights, (terms,)."""
        self._terms, self._weights = terms, weights

    def __len__(self) -> int:
        return len(self._terms)

    @classmethod
    def load(cls, path: Path) -> "TermWeights":
        """Read a file of `save`.

        Raises:
            ModelError: It is no such file, or its terms are those of another analyser.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                analyser, terms, weights = str(arrays["analyser"]), arrays["terms"], arrays["weights"]
        except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
            raise ModelError(f"{path}: holds no weights of terms ({error}); make them again") from error
        if analyser != ANALYSER:
            raise ModelError(
                f"{path}: its terms are those of analyser {analyser!r}, this version has {ANALYSER!r}; make them again "
                "with: care-train terms"
            )
        return cls(terms.astype(np.uint32), weights.astype(np.float32))

    def save(self, path: Path) -> None:
        """Write the weights in half precision."""
        np.savez_compressed(
            path, analyser=np.array(ANALYSER), terms=self._terms, weights=self._weights.astype(np.float16)
        )

    def query_vector(self, text: str) -> models.SparseVector:
        """Return a query's weighted term counts; empty for a text without terms."""
        counts = term_counts(text)
        terms = np.fromiter(counts, np.uint32, len(counts))
        places = np.searchsorted(self._terms, terms)
        places[places == len(self._terms)] = 0
        weights = np.where(self._terms[places] == terms, self._weights[places], 1.0)
        values = weights * np.fromiter(counts.values(), np.float64, len(counts))
        return models.SparseVector(indices=list(counts), values=values.tolist())
