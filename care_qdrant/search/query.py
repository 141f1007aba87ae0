"""A query: the requests that it makes to Qdrant, and the hits that come back."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.encoders.terms.sparse import SparseQuery
from care_qdrant.search.conditions import keys_of
from care_qdrant.search.fusion import DEFAULT_ALPHA, Fusion, candidates, fused_request
from care_qdrant.search.resolve import ResolvedCollection
from care_qdrant.types import Hit

logger = logging.getLogger(__name__)

FEW_POINTS = 10_000
"""Least number of points from which on a filter on a key without an index is slow."""


@dataclass(frozen=True, slots=True)
class Query:
    """Query of a search: its vector, its terms, its filter and its fusion."""

    vector: list[float] | None
    """None searches by the terms alone; without terms either, points come in the order of their ids."""
    terms: SparseQuery | None
    """None where the sparse vector is not searched; a text may also have no terms at all."""
    top_k: int
    filter: models.Filter | None = None
    params: models.SearchParams | None = None
    """Parameters of the dense search."""
    fusion: Fusion | None = "linear"
    """Fusion of the two lists by Qdrant; None where the caller fuses them."""
    alpha: float | None = None
    """Share of the dense score in a fused one, from 0 to 1; None takes that of the collection."""
    sparse_top_k: int | None = None
    """Points that the sparse vector offers to a caller who fuses; None is as many as the dense one."""
    with_vectors: bool = False
    """Return candidates with their dense vector, from which the caller chooses ``top_k``."""
    shard_key: models.ShardKeySelector | None = None
    """Shards to search; None for all."""

    @property
    def has_terms(self) -> bool:
        """Whether there is something for the sparse vector to match."""
        return self.terms is not None and not (isinstance(self.terms, models.SparseVector) and not self.terms.indices)

    @property
    def is_hybrid(self) -> bool:
        """Whether there are two lists to fuse."""
        return self.vector is not None and self.has_terms

    def alpha_in(self, resolved: ResolvedCollection) -> float:
        """Return the share of the dense score: the caller's, or in the linear fusion the collection's."""
        if self.alpha is not None:
            return self.alpha
        return resolved.alpha if self.fusion == "linear" else DEFAULT_ALPHA

    def requests(self, resolved: ResolvedCollection) -> list[models.QueryRequest]:
        """Return a request per list, or one for two lists that Qdrant fuses; none for a text without terms."""
        max_limit = resolved.limits.query
        if self.is_hybrid and self.fusion is not None:
            fused = fused_request(
                self._dense(resolved),
                self._sparse(resolved),
                fusion=self.fusion,
                alpha=self.alpha_in(resolved),
                limit=self.top_k,
                max_limit=max_limit,
            )
            return [fused.model_copy(update={"shard_key": self.shard_key})]
        leaves = [self._dense(resolved)] if self.vector is not None or self.terms is None else []
        leaves += [self._sparse(resolved)] if self.has_terms else []
        chosen_later = self.is_hybrid or self.with_vectors
        limit = candidates(self.top_k, fusion=None, max_limit=max_limit) if chosen_later else self.top_k
        return [self._request(leaf, limit) for leaf in leaves]

    def _request(self, leaf: models.Prefetch, limit: int) -> models.QueryRequest:
        return models.QueryRequest(
            query=leaf.query,
            using=leaf.using,
            filter=leaf.filter,
            params=leaf.params,
            limit=leaf.limit or limit,
            shard_key=self.shard_key,
            with_payload=True,
            with_vector=([leaf.using] if leaf.using else True) if self.with_vectors else None,
        )

    def _sparse(self, resolved: ResolvedCollection) -> models.Prefetch:
        return models.Prefetch(
            query=self.terms, using=resolved.sparse_vector_name, filter=self.filter, limit=self.sparse_top_k
        )

    def _dense(self, resolved: ResolvedCollection) -> models.Prefetch:
        """Return the search in the dense vector, as its quantisation, its graph and a filter beside it require."""
        given = self.params or models.SearchParams()
        added: dict[str, Any] = {"quantization": resolved.quantization}
        if self.vector is not None and resolved.schema.has_index and not given.exact:  # searched by the graph
            added["hnsw_ef"] = resolved.hnsw_ef
            if self.filter is not None:
                _tell_unindexed(resolved, self.filter)
                added["acorn"] = models.AcornSearchParams(enable=True)
        added = {name: value for name, value in added.items() if value is not None and getattr(given, name) is None}
        params = given.model_copy(update=added) if added else self.params
        return models.Prefetch(query=self.vector, using=resolved.vector_name, filter=self.filter, params=params)


def find(resolved: ResolvedCollection, queries: Sequence[Query], what: str = "searching") -> list[list[list[Hit]]]:
    """Ask a collection in one call, and return the hits of each list that each query asked for, best first."""
    requests = [query.requests(resolved) for query in queries]
    answers = iter(resolved.collection.search(what, [request for each in requests for request in each]))
    return [[[resolved.read(point) for point in next(answers)] for _ in each] for each in requests]


def _tell_unindexed(resolved: ResolvedCollection, conditions: models.Filter) -> None:
    """Log once for each key of a filter that it has no index: a search of the graph then misses much of what passes."""
    if resolved.schema.points < FEW_POINTS:
        return
    for key in sorted(keys_of(conditions) - resolved.schema.payload_schema.keys() - resolved.told_keys):
        resolved.told_keys.add(key)
        logger.warning(
            "collection %r: a filter asks for %r, which has no payload index: searches with it are slow and miss "
            "points that pass. Create the index: care-ingest --index %s, or create_payload_index of the client",
            resolved.name,
            key,
            key,
        )
