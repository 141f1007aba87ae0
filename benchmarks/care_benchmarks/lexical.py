"""BM25 of many documents as one matrix, for pooling and experiments that score every document."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient, models
from scipy import sparse

from care_qdrant import Collection
from care_qdrant.types import TermVector

Scores = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Terms = TermVector | models.SparseVector


class Bm25Matrix:
    """BM25 term weights of all documents in one sparse matrix."""

    def __init__(self, documents: Sequence[Terms]) -> None:
        """Build the matrix from document vectors of `care_qdrant.encoders.terms.bm25`."""
        lengths = [len(vector.indices) for vector in documents]
        self._terms, columns = np.unique(np.concatenate([vector.indices for vector in documents]), return_inverse=True)
        weights = np.concatenate([vector.values for vector in documents])
        rows = np.repeat(np.arange(len(documents)), lengths)
        self._weights = sparse.csc_matrix((weights, (rows, columns)), shape=(len(documents), len(self._terms)))

    def scores(self, query: Terms) -> tuple[Scores, Mask]:
        """Score all documents."""
        count = self._weights.shape[0]
        places = np.searchsorted(self._terms, query.indices)
        known = [
            (place, value)
            for place, term, value in zip(places, query.indices, query.values, strict=True)
            if place < len(self._terms) and self._terms[place] == term
        ]
        if not known:
            return np.zeros(count), np.zeros(count, dtype=bool)
        columns = self._weights[:, [place for place, _ in known]]
        frequency = columns.getnnz(axis=0)
        idf = np.log((count - frequency + 0.5) / (frequency + 0.5) + 1)
        return columns @ (idf * [value for _, value in known]), columns.getnnz(axis=1) > 0


def scroll_points(
    client: QdrantClient, collection: str, vector_names: list[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the document id and the named vectors of every point."""
    for page in Collection(client, collection).scroll(payload=["doc_id"], vectors=vector_names):
        for point in page:
            vectors: Any = point.vector
            yield str((point.payload or {})["doc_id"]), vectors
