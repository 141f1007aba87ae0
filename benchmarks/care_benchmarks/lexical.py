"""BM25 and hybrid search over all stored vectors as one matrix, for the embedded database.

qdrant-client's embedded database compares sparse vectors in pure Python: about a second per query at 9,000 documents
(three for a hybrid), which is an hour for a development set. The stored vectors are therefore read back and multiplied
at once, by the formulas of `care_qdrant.encoders.bm25` and `care_qdrant.search.fusion`. Each run checks its first
queries against `care_qdrant.search.retriever.Retriever` and stops if they differ. On a server none of this is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient, models
from scipy import sparse

from care_qdrant.encoders import bm25
from care_qdrant.errors import CareError
from care_qdrant.model.pair import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME
from care_qdrant.search.fusion import CANDIDATES, DEFAULT_ALPHA, bm25_weight
from care_qdrant.search.retriever import Mode, Retriever

CHECKED_QUERIES = 3
MIN_DOCUMENTS = 1_000
"""Number of documents below which the embedded database is fast enough by itself."""
_TOLERANCE = 1e-4

Scores = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Bm25Matrix:
    """BM25 term weights of all documents in one sparse matrix."""

    def __init__(self, documents: Sequence[models.SparseVector]) -> None:
        """Build the matrix from document vectors of `care_qdrant.encoders.bm25`."""
        lengths = [len(vector.indices) for vector in documents]
        self._terms, columns = np.unique(np.concatenate([vector.indices for vector in documents]), return_inverse=True)
        weights = np.concatenate([vector.values for vector in documents])
        rows = np.repeat(np.arange(len(documents)), lengths)
        self._weights = sparse.csc_matrix((weights, (rows, columns)), shape=(len(documents), len(self._terms)))

    def scores(self, query: models.SparseVector) -> tuple[Scores, Mask]:
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


class MatrixPath:
    """A sparse or hybrid query path over one collection, with all vectors in memory."""

    description = "stored vectors multiplied as one matrix"

    def __init__(
        self, client: QdrantClient, collection: str, model: CareModel, mode: Mode, *, task: str | None = None
    ) -> None:
        """Read all vectors of an ingested collection that has one point per document; queries get a task's prompt."""
        self._prompt = model.query_prompt(task)
        self._model = model if mode == "hybrid" else None
        names = [SPARSE_VECTOR_NAME, model.name] if self._model else [SPARSE_VECTOR_NAME]
        points = list(scroll_points(client, collection, names))
        self._documents = [document for document, _ in points]
        self._rows = {document: row for row, document in enumerate(self._documents)}
        self._bm25 = Bm25Matrix([vectors[SPARSE_VECTOR_NAME] for _, vectors in points])
        self._dense = np.asarray([vectors[model.name] for _, vectors in points]) if self._model else None

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Return document id → score of the best ``top_k``, restricted to ``among`` if it is set."""
        allowed = np.ones(len(self._documents), dtype=bool)
        if among is not None:
            allowed[:] = False
            allowed[[self._rows[document] for document in among]] = True
        terms = bm25.query_vector(query)
        lexical, matches = self._bm25.scores(terms)
        if self._model is None or self._dense is None:
            return self._best(lexical, allowed & matches, top_k)
        cosine = self._dense @ self._model.encode_query([query], prompt=self._prompt)[0].astype(np.float64)
        return self._fused(cosine, lexical, matches, bm25_weight(max(1, len(terms.indices))), allowed, top_k)

    def _fused(
        self, cosine: Scores, lexical: Scores, matches: Mask, weight: float, allowed: Mask, top_k: int
    ) -> dict[str, float]:
        """Score the best candidates of both lists by both, as `care_qdrant.search.fusion` requests it of Qdrant."""
        limit = max(CANDIDATES, top_k)
        candidates = np.zeros(len(self._documents), dtype=bool)
        for scores, usable in ((cosine, allowed), (lexical, allowed & matches)):
            candidates[_top(scores, usable, limit)] = True
        fused = DEFAULT_ALPHA * cosine + (1 - DEFAULT_ALPHA) * weight * lexical
        return self._best(fused, candidates, top_k)

    def _best(self, scores: Scores, usable: Mask, top_k: int) -> dict[str, float]:
        return {self._documents[row]: float(scores[row]) for row in _top(scores, usable, top_k)}


def check_against(retriever: Retriever, matrix: MatrixPath, queries: Sequence[str], top_k: int) -> None:
    """Compare the scores of the first queries with those of Qdrant."""
    answers = retriever.search(list(queries[:CHECKED_QUERIES]), top_k)
    for query, hits in zip(queries, answers, strict=False):
        ours = sorted(matrix(query, top_k).values(), reverse=True)
        theirs = [hit.score for hit in hits]
        if len(ours) != len(theirs) or not np.allclose(ours, theirs, atol=_TOLERANCE, rtol=_TOLERANCE):
            raise CareError(
                f"query {query[:40]!r}: the matrix search gives {ours[:3]}, Qdrant {theirs[:3]}; "
                "the formulas of care_qdrant.encoders.bm25 or care_qdrant.search.fusion have changed: "
                "adapt care_benchmarks.lexical"
            )


def scroll_points(
    client: QdrantClient, collection: str, vector_names: list[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the document id and the named vectors of every point."""
    for page in Collection(client, collection).scroll(payload=["doc_id"], vectors=vector_names):
        for point in page:
            vectors: Any = point.vector
            yield str((point.payload or {})["doc_id"]), vectors


def _top(scores: Scores, usable: Mask, count: int) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(usable)
    return rows[np.argsort(-scores[rows], kind="stable")[:count]]
