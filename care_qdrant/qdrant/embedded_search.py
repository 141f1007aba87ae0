"""Array-based searches of the embedded database: the answers of qdrant-client, in a fraction of its time.

qdrant-client merges a sparse query with every stored vector in pure Python, 70 microseconds each, and runs each leaf of
a fused query once for every list that it is in. Here stored sparse vectors are also kept as flat arrays, as long as
the client is open; a leaf is searched once, and its scores serve all candidates. Products are added up in the same
order and precision, so scores are equal to the last bit. Nothing of qdrant-client is replaced: its local collections
are read, and where they are not as expected, qdrant-client answers itself.
"""

import array
import logging
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from operator import getitem, is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient, models

try:
    from qdrant_client.hybrid.fusion import distribution_based_score_fusion, reciprocal_rank_fusion
    from qdrant_client.local.distances import calculate_distance
except ImportError as error:
    _IMPORT_ERROR: ImportError | None = error
else:
    _IMPORT_ERROR = None

logger = logging.getLogger(__name__)

_READ = (
    "_compute_idf",
    "_payload_and_non_deleted_mask",
    "_rescore_idf",
    "config",
    "deleted_per_vector",
    "get_vector_params",
    "ids_inv",
    "payload",
    "sparse_vectors",
    "vectors",
)
"""Attributes of qdrant-client's local collections that a search reads."""
# They are not a public interface: where one is missing, a warning says so and qdrant-client itself searches.

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float32]
Order = npt.NDArray[np.int64]
Found = list[models.ScoredPoint]

_COLUMNS: "WeakKeyDictionary[Any, dict[str, SparseColumn]]" = WeakKeyDictionary()
"""Columns of the sparse vectors, by local collection and name of the vector."""
# Without a lock of its own: callers hold the lock of the client.


def search_arrays(client: QdrantClient, collection: str, request: models.QueryRequest) -> Found | None:
    """Return the answer to a BM25 or a fused request; None for others, which qdrant-client answers."""
    collections = getattr(getattr(client, "_client", None), "collections", None)
    local: Any = (collections or {}).get(collection)
    if local is None and collections is not None:  # qdrant-client's to refuse
        return None
    if missing := _missing_names(local):
        _warn_once(missing)
        return None
    search, query, start = _Search(local), request.query, request.offset or 0
    limit = 10 if request.limit is None else request.limit
    if limit < 1 or start < 0 or request.lookup_from is not None:  # qdrant-client's to refuse, or to look up
        return None
    end = start + limit
    if request.prefetch is None:
        if not isinstance(query, models.SparseVector) or not query.indices:
            return None
        leaf = models.Prefetch(
            query=query, using=request.using, filter=request.filter, params=request.params, limit=end
        )
        leaf.score_threshold = request.score_threshold
        best = search.leaf(leaf)
        points = None if best is None else best[start:]
    elif not isinstance(request.prefetch, list) or any(
        given is not None for given in (request.filter, request.score_threshold, request.using)
    ):
        return None
    elif isinstance(query, models.FusionQuery):
        lists = search.leaves(request.prefetch)
        fuse = reciprocal_rank_fusion if query.fusion is models.Fusion.RRF else distribution_based_score_fusion
        points = None if lists is None else fuse(lists, limit=end)[start:]
    elif isinstance(query, models.RrfQuery):
        lists, by = search.leaves(request.prefetch), query.rrf
        points = None if lists is None else reciprocal_rank_fusion(lists, end, by.k, by.weights)[start:]
    elif isinstance(query, models.FormulaQuery):
        best = search.weighted(request.prefetch, query, end)
        points = None if best is None else best[start:]
    else:
        return None
    return None if points is None else _with_payloads(client, collection, points, request)


def _missing_names(local: Any) -> str:
    """Return the names that a search reads and that this qdrant-client lacks; empty where it has them all."""
    if _IMPORT_ERROR is not None:
        return str(_IMPORT_ERROR)
    names = ["QdrantLocal.collections"] if local is None else [name for name in _READ if not hasattr(local, name)]
    return ", ".join(names)


@cache
def _warn_once(missing: str) -> None:
    """Warn, once in a process, that searches of the embedded database take longer."""
    logger.warning(
        "qdrant-client %s does not have what fast searches of the embedded database read (%s): it searches itself, "
        "with the same answers in more time; a newer care-qdrant may know this version",
        version("qdrant-client"),
        missing,
    )


class _Search:
    """One request: values that its leaves share, such as the points that pass their filter, are computed once."""

    def __init__(self, local: Any) -> None:
        self._local = local
        self._scores: list[tuple[models.Prefetch, Scores, Order]] = []
        self._masks: list[tuple[models.Filter | None, Mask]] = []

    def leaves(self, leaves: Sequence[models.Prefetch]) -> list[Found] | None:
        """Return the best points of each leaf; None if a leaf is not a plain search."""
        lists = [self.leaf(leaf) for leaf in leaves]
        return None if None in lists else [best for best in lists if best is not None]

    def leaf(self, leaf: models.Prefetch) -> Found | None:
        """Return the best points of one search."""
        rows, ranked = self._best(leaf), self._ranked(leaf)
        return None if rows is None or ranked is None else self._points(rows, ranked[0][rows])

    def weighted(self, sources: Sequence[models.Prefetch], query: models.FormulaQuery, limit: int) -> Found | None:
        """Return the best candidates of the leaves, each scored by all of them."""
        weights, leaves = _weights(query), sources[0].prefetch
        if weights is None or not isinstance(leaves, list) or any(source.prefetch != leaves for source in sources):
            return None
        scored = [leaf for source in sources for leaf in leaves if _search_of(leaf) == _search_of(source)]
        candidates = [rows for leaf in leaves if (rows := self._best(leaf)) is not None]
        if not len(scored) == len(weights) == len(sources) or len(candidates) < len(leaves):
            return None
        rows = np.flatnonzero(np.bincount(np.concatenate(candidates)))  # np.unique would import numpy.ma for it
        if not all(_rescores_all(source, len(rows)) for source in sources):
            return None
        total, places = np.zeros(len(rows)), []
        for leaf, weight in zip(scored, weights, strict=True):
            ranked = self._ranked(leaf)
            if ranked is None:
                return None
            scores, order = ranked
            # A list also scores the candidates of the other lists, regardless of the filter for its own candidates.
            has = self._mask(models.Prefetch(using=leaf.using))[rows] & (scores[rows] > -np.inf)
            total[has] += weight * scores[rows][has].astype(np.float64)
            place = np.empty(len(scores), dtype=np.int64)
            place[order] = np.arange(len(scores))
            places.append(np.where(has, place[rows], len(scores)))
        final = total.astype(np.float32)
        # Equal scores in the order of the lists, the first one first.
        best = np.lexsort((*reversed(places), -final))[:limit]
        return self._points(rows[best], final[best])

    def _best(self, leaf: models.Prefetch) -> Order | None:
        """Return the rows of the best points of one search, None for another kind of search."""
        ranked = self._ranked(leaf)
        if ranked is None:
            return None
        (scores, order), mask = ranked, self._mask(leaf)
        least = -np.inf if leaf.score_threshold is None else leaf.score_threshold
        return order[mask[order] & (scores[order] > least)][: leaf.limit or 10]

    def _points(self, rows: Order, scores: Scores) -> Found:
        ids = (self._local.ids_inv[row] for row in rows.tolist())
        return [
            models.ScoredPoint.model_construct(id=point_id, version=0, score=score, payload=None, vector=None)
            for point_id, score in zip(ids, scores.astype(float).tolist(), strict=True)
        ]

    def _ranked(self, leaf: models.Prefetch) -> tuple[Scores, Order] | None:
        """Return the score of every point by a leaf, and all points best first; None for another kind of search."""
        for known, its_scores, its_order in self._scores:
            if known is leaf:
                return its_scores, its_order
        local, name, query = self._local, leaf.using or "", leaf.query
        scores: Any
        has_idf = name in local.sparse_vectors and local.config.sparse_vectors[name].modifier == models.Modifier.IDF
        if leaf.prefetch is not None or leaf.limit == 0 or (not has_idf and _search_of(leaf)[-1] is not None):
            return None
        if isinstance(query, models.SparseVector) and name in local.sparse_vectors:
            if has_idf:
                query = self._weighted_by_idf(query, leaf)
            scores = _column(local, name).scores(query)
        elif isinstance(query, list) and query and isinstance(query[0], float) and name in local.vectors:
            distance = local.get_vector_params(name).distance
            if distance not in (models.Distance.COSINE, models.Distance.DOT):
                return None
            scores = calculate_distance(np.array(query), local.vectors[name][: len(local.payload)], distance)
        else:
            return None
        order = np.argsort(scores)[::-1]
        self._scores.append((leaf, scores, order))
        return scores, order

    def _weighted_by_idf(self, query: models.SparseVector, leaf: models.Prefetch) -> models.SparseVector:
        """Return the query with its terms weighted by IDF, over all points or over the corpus that it names."""
        local, name = self._local, leaf.using or ""
        idf = None if leaf.params is None else leaf.params.idf
        if not isinstance(idf, models.IdfCorpusParams):
            rescored: models.SparseVector = local._rescore_idf(query, name, None)
            return rescored
        corpus = self._mask(models.Prefetch(using=name, filter=idf.corpus))
        counts, points = _column(local, name).frequencies(query.indices, corpus), int(np.count_nonzero(corpus))
        weights = [local._compute_idf(count, points) for count in counts.tolist()]
        values = [value * weight for value, weight in zip(query.values, weights, strict=True)]
        return models.SparseVector(indices=query.indices, values=values)

    def _mask(self, leaf: models.Prefetch) -> Mask:
        """Return which points pass the filter of a leaf, are not deleted and have its vector."""
        mask = next((mask for known, mask in self._masks if known == leaf.filter), None)
        if mask is None:
            mask = self._local._payload_and_non_deleted_mask(leaf.filter).astype(bool)
            self._masks.append((leaf.filter, mask))
        missing: Mask = self._local.deleted_per_vector[leaf.using or ""].astype(bool)
        return mask & ~missing[: len(mask)]


def _search_of(leaf: models.Prefetch) -> tuple[Any, ...]:
    """Return the parts of a leaf that determine the scores of points, to compare two leaves."""
    return leaf.query, leaf.using, None if leaf.params is None else leaf.params.idf


def _rescores_all(source: models.Prefetch, candidates: int) -> bool:
    """Return whether a list scores each candidate of its leaves, as the leaf of its vector does, and no more."""
    known = ("prefetch", "query", "using", "params", "limit")
    others = (name for name in models.Prefetch.model_fields if name not in known)
    return (source.limit or 10) >= candidates and all(getattr(source, name) is None for name in others)


def _weights(query: models.FormulaQuery) -> list[float] | None:
    """Return the weight of each list in a formula that adds them up, None for another formula."""
    if any((query.defaults or {}).values()):
        return None
    terms = query.formula.sum if isinstance(query.formula, models.SumExpression) else []
    weights: list[float] = []
    for number, term in enumerate(terms):
        factors = term.mult if isinstance(term, models.MultExpression) else []
        if len(factors) != 2 or not isinstance(factors[0], float | int) or factors[1] != f"$score[{number}]":
            return None
        weights.append(float(factors[0]))
    return weights


def _with_payloads(client: QdrantClient, collection: str, points: Found, request: models.QueryRequest) -> Found:
    """Add the payloads and vectors that the request asks for to the points of the answer."""
    payload = bool(request.with_payload) if isinstance(request.with_payload, bool | None) else request.with_payload
    vectors = request.with_vector or False
    records = {
        record.id: record
        for record in client.retrieve(
            collection, [point.id for point in points], with_payload=payload, with_vectors=vectors
        )
    }
    for point in points:
        point.payload, point.vector = records[point.id].payload, records[point.id].vector
    return points


def _column(local: Any, name: str) -> "SparseColumn":
    """Return the current sparse vectors of a name."""
    vectors, columns = local.sparse_vectors[name][: len(local.payload)], _COLUMNS.setdefault(local, {})
    if name not in columns or not columns[name].holds(vectors):
        columns[name] = SparseColumn(vectors)
    return columns[name]


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
        """Return whether these are the very vectors that were copied; the database replaces vectors, and edits none."""
        return len(vectors) == len(self._vectors) and all(map(is_, vectors, self._vectors))

    def scores(self, query: models.SparseVector) -> Scores:
        """Return the dot product of a query with each vector, ``(n,)``; minus infinity where they share no index."""
        terms = np.asarray(query.indices, dtype=np.uint32)
        order = np.argsort(terms)
        terms, weights = terms[order], np.asarray(query.values, dtype=np.float64)[order]
        is_near = np.zeros(1 << 16, dtype=bool)
        is_near[terms.astype(np.uint16)] = True
        near = np.flatnonzero(is_near[self._low_bits])
        places = np.minimum(np.searchsorted(terms, self._indices[near]), len(terms) - 1)
        is_hit = terms[places] == self._indices[near]
        hits, places = near[is_hit], places[is_hit]
        rows, count = self._rows[hits], len(self._vectors)
        sums = np.bincount(rows, self._stored_values(hits) * weights[places], minlength=count).astype(np.float64)
        sums[np.bincount(rows, minlength=count) == 0] = -np.inf
        return sums.astype(np.float32)

    def frequencies(self, indices: Sequence[int], rows: Mask) -> npt.NDArray[np.int64]:
        """Return the number of vectors in ``rows`` that have each index, ``(len(indices),)``."""
        terms, places = np.unique(np.asarray(indices, dtype=np.uint32), return_inverse=True)
        entries = self._indices[rows[self._rows]] if len(self._rows) else self._indices
        at = np.minimum(np.searchsorted(terms, entries), len(terms) - 1)
        return np.bincount(at[terms[at] == entries], minlength=len(terms))[places].astype(np.int64)

    def _stored_values(self, hits: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the values at these positions; they are copied at their first use, since most are never used."""
        new = hits[~self._is_copied[hits]]
        rows = self._rows[new]
        lists = map([vector.values for vector in self._vectors].__getitem__, rows.tolist())
        offsets = (new - self._starts[rows]).tolist()
        self._values[new] = np.fromiter(map(getitem, lists, offsets), np.float64, len(new))
        self._is_copied[new] = True
        return self._values[hits]
