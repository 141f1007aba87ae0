"""Sparse search of the embedded database on arrays: the scores of qdrant-client, some fifty times as fast.

qdrant-client merges a sparse query with every stored vector in pure Python, 70 microseconds each. Here the stored
vectors of one name are also kept as flat arrays, beside the open client and only as long, and a query is one pass over
them. Products are added up in the same order and precision, so scores are equal to the last bit.
"""

import array
from collections.abc import Callable, Sequence
from operator import getitem, is_
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.connection import is_embedded

_TAKEN_OVER = ("query_points", "search", "_payload_and_non_deleted_mask")
_USED = (
    "_existing_idx",
    "_rescore_idf",
    "config",
    "deleted_per_vector",
    "ids_inv",
    "payload",
    "retrieve",
    "sparse_vectors",
)
"""Of qdrant-client's local collections, which are no public interface."""

T = TypeVar("T")
Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float32]


def tune_sparse_search(client: QdrantClient, collection: str) -> bool:
    """Let the sparse searches of an embedded collection run on arrays until the client is closed.

    The local collections of qdrant-client are private: where they are not as expected, nothing changes and False comes
    back.
    """
    if not is_embedded(client):
        return False
    local: Any = getattr(client._client, "collections", {}).get(collection)
    if not all(hasattr(local, name) for name in (*_TAKEN_OVER, *_USED)):
        return False
    if "query_points" not in vars(local):
        tuned = _TunedCollection(local)
        for name in local.sparse_vectors:
            tuned.column(name)
    return True


class SparseColumn:
    """The sparse vectors of one name as flat arrays."""

    def __init__(self, vectors: Sequence[models.SparseVector]) -> None:
        """Copy the indices of the vectors, which are sorted: about 20 nanoseconds each."""
        self._vectors = list(vectors)
        lengths = np.fromiter((len(vector.indices) for vector in vectors), np.int64, len(vectors))
        self._starts = np.cumsum(lengths) - lengths
        self._rows = np.repeat(np.arange(len(vectors), dtype=np.int32), lengths)
        indices = array.array("I")
        for vector in vectors:
            indices.fromlist(vector.indices)
        self._indices = np.array(indices, dtype=np.uint32)
        self._low_bits = self._indices.astype(np.uint16)
        self._values = np.zeros(len(self._indices), dtype=np.float64)
        self._is_copied = np.zeros(len(self._indices), dtype=bool)

    def holds(self, vectors: Sequence[models.SparseVector]) -> bool:
        """Return whether these are the very vectors that were copied; the database replaces them, and changes none."""
        return len(vectors) == len(self._vectors) and all(map(is_, vectors, self._vectors))

    def scores(self, query: models.SparseVector) -> Scores:
        """Return the dot product of a query with each vector, ``(n,)``; minus infinity where they share no index."""
        wanted = np.asarray(query.indices, dtype=np.uint32)
        order = np.argsort(wanted)
        wanted, weights = wanted[order], np.asarray(query.values, dtype=np.float64)[order]
        is_near = np.zeros(1 << 16, dtype=bool)
        is_near[wanted.astype(np.uint16)] = True
        near = np.flatnonzero(is_near[self._low_bits])
        places = np.minimum(np.searchsorted(wanted, self._indices[near]), len(wanted) - 1)
        is_hit = wanted[places] == self._indices[near]
        hits, places = near[is_hit], places[is_hit]
        rows, count = self._rows[hits], len(self._vectors)
        sums = np.bincount(rows, self._stored_values(hits) * weights[places], minlength=count).astype(np.float64)
        sums[np.bincount(rows, minlength=count) == 0] = -np.inf
        return sums.astype(np.float32)

    def _stored_values(self, hits: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the numbers at these places; each is copied when a query first meets it, as most are never met."""
        new = hits[~self._is_copied[hits]]
        rows = self._rows[new]
        lists = map([vector.values for vector in self._vectors].__getitem__, rows.tolist())
        offsets = (new - self._starts[rows]).tolist()
        self._values[new] = np.fromiter(map(getitem, lists, offsets), np.float64, len(new))
        self._is_copied[new] = True
        return self._values[hits]


class _TunedCollection:
    """Takes the place of three methods of one local collection, and lives as long as it.

    What one call of ``query_points`` needs more than once, such as the points that pass the filter of both lists of a
    hybrid query, is computed once. Callers hold the lock of the client, so nothing changes during a call.
    """

    def __init__(self, local: Any) -> None:
        self._local = local
        self._query_points, self._search, self._mask = (getattr(local, name) for name in _TAKEN_OVER)
        self._columns: dict[str, SparseColumn] = {}
        self._memo: list[tuple[Any, Any]] | None = None
        own: tuple[Any, ...] = (self.query_points, self.search, self.mask)
        for name, method in zip(_TAKEN_OVER, own, strict=True):
            setattr(local, name, method)

    def query_points(self, *arguments: Any, **options: Any) -> Any:
        """Answer as the local collection does."""
        self._memo = []
        try:
            return self._query_points(*arguments, **options)
        finally:
            self._memo = None

    def search(self, query_vector: Any, *arguments: Any, **options: Any) -> list[models.ScoredPoint]:
        """Answer as the local collection does; sparse queries by arrays."""
        name, query = query_vector if isinstance(query_vector, tuple) else ("", query_vector)
        if not isinstance(query, models.SparseVector) or name not in self._local.sparse_vectors or not query.indices:
            found: list[models.ScoredPoint] = self._search(query_vector, *arguments, **options)
            return found
        return self._search_sparse(name, query, *arguments, **options)

    def mask(self, payload_filter: models.Filter | None, vector_name: str | None = None) -> Mask:
        """Return which points pass a filter, are not deleted and have a vector, ``(n,)``.

        The local collection looks at every payload in pure Python, also where the filter names the ids of candidates.
        """
        ids, others = _split_ids(payload_filter)
        mask: Mask = self._once(others, lambda: self._mask(others).astype(bool))
        if vector_name is not None:
            mask = mask & ~self._local.deleted_per_vector[vector_name].astype(bool)
        for condition in ids:
            rows = [row for each in condition.has_id if (row := self._local._existing_idx(each)) is not None]
            mask = mask & np.isin(np.arange(len(mask)), rows)
        return mask

    def column(self, name: str) -> SparseColumn:
        """Return the vectors of a name as they are now."""
        vectors = self._local.sparse_vectors[name][: len(self._local.payload)]
        column = self._columns.get(name)
        if column is None or not column.holds(vectors):
            column = self._columns[name] = SparseColumn(vectors)
        return column

    def _search_sparse(
        self,
        name: str,
        query: models.SparseVector,
        query_filter: models.Filter | None = None,
        limit: int = 10,
        offset: int | None = None,
        with_payload: Any = True,
        with_vectors: Any = False,
        score_threshold: float | None = None,
        idf_corpus: models.Filter | None = None,
    ) -> list[models.ScoredPoint]:
        scores = self._once((name, query, idf_corpus), lambda: self._scores(name, query, idf_corpus))
        mask, start = self.mask(query_filter, name), offset or 0
        order = np.argsort(scores)[::-1]
        least = -np.inf if score_threshold is None else score_threshold
        best = order[mask[order] & (scores[order] > least)][start : start + limit]
        ids = [self._local.ids_inv[row] for row in best]
        records = self._local.retrieve(ids, with_payload=with_payload, with_vectors=with_vectors)
        return [
            models.ScoredPoint(id=each.id, version=0, score=float(score), payload=each.payload, vector=each.vector)
            for each, score in zip(records, scores[best], strict=True)
        ]

    def _once(self, key: Any, compute: Callable[[], T]) -> T:
        """Return what was computed for an equal key in this call of `query_points`, or compute it."""
        for known, result in self._memo or ():
            if known == key:
                return cast(T, result)
        result = compute()
        if self._memo is not None:
            self._memo.append((key, result))
        return result

    def _scores(self, name: str, query: models.SparseVector, idf_corpus: models.Filter | None) -> Scores:
        if self._local.config.sparse_vectors[name].modifier == models.Modifier.IDF:
            query = self._local._rescore_idf(query, name, idf_corpus)
        return self.column(name).scores(query)


def _split_ids(payload_filter: models.Filter | None) -> tuple[list[models.HasIdCondition], models.Filter | None]:
    """Return the conditions of a filter on ids that all must hold, and the filter without them."""
    if payload_filter is None or not isinstance(payload_filter.must, list):
        return [], payload_filter
    ids = [each for each in payload_filter.must if isinstance(each, models.HasIdCondition)]
    if not ids:
        return [], payload_filter
    others = [each for each in payload_filter.must if not isinstance(each, models.HasIdCondition)]
    rest = payload_filter.model_copy(update={"must": others or None})
    return ids, None if rest == models.Filter() else rest
