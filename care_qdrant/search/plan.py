"""One query as requests to Qdrant."""

import logging
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.encoders.sparse import SparseQuery
from care_qdrant.search.conditions import keys_of
from care_qdrant.search.fusion import DEFAULT_ALPHA, Fusion, candidates, fused_request
from care_qdrant.search.resolve import ResolvedCollection

logger = logging.getLogger(__name__)

FEW_POINTS = 10_000
"""Fewer are compared one by one, or in a moment, so that nobody has to index payloads for them."""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A search by each kind of vector that a query has; None for a kind that it does not have."""

    dense: models.Prefetch | None
    sparse: models.Prefetch | None
    top_k: int
    """Number of points to return."""
    fusion: Fusion | None = "linear"
    """How Qdrant fuses the two lists; None where the caller fuses them."""
    alpha: float = DEFAULT_ALPHA
    """Share of the dense score in a fused one, from 0 to 1."""
    with_vectors: bool = False
    """Return candidates with their dense vector, from which the caller chooses ``top_k``."""
    max_limit: int | None = None
    """Highest number of candidates that the server allows; None for no limit."""
    shard_key: Any | None = None
    """Shards to search; None for all."""

    @property
    def is_hybrid(self) -> bool:
        """Whether there are two lists to fuse."""
        return self.dense is not None and self.sparse is not None

    def requests(self) -> list[models.QueryRequest]:
        """Return one request per list, or a single one for two lists that Qdrant fuses; none for an empty query."""
        if self.dense is not None and self.sparse is not None and self.fusion is not None:
            fused = fused_request(
                self.dense,
                self.sparse,
                fusion=self.fusion,
                alpha=self.alpha,
                limit=self.top_k,
                max_limit=self.max_limit,
            )
            return [fused.model_copy(update={"shard_key": self.shard_key})]
        chosen_later = self.is_hybrid or self.with_vectors
        limit = candidates(self.top_k, fusion=None, max_limit=self.max_limit) if chosen_later else self.top_k
        return [self._request(leaf, limit) for leaf in (self.dense, self.sparse) if leaf is not None]

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


def dense_search(
    resolved: ResolvedCollection,
    vector: list[float] | None,
    *,
    filter: models.Filter | None,  # noqa: A002  # the word of Qdrant and of LlamaIndex
    params: models.SearchParams | None,
) -> models.Prefetch:
    """Return the search of a query in the dense vector of a collection."""
    if resolved.quantization is not None and (params is None or params.quantization is None):
        params = (params or models.SearchParams()).model_copy(update={"quantization": resolved.quantization})
    if filter is not None and vector is not None and resolved.has_index and not (params and params.exact):
        _tell_unindexed(resolved, filter)
        if params is None or params.acorn is None:
            acorn = models.AcornSearchParams(enable=True)
            params = (params or models.SearchParams()).model_copy(update={"acorn": acorn})
    return models.Prefetch(query=vector, using=resolved.vector_name, filter=filter, params=params)


def _tell_unindexed(resolved: ResolvedCollection, conditions: models.Filter) -> None:
    """Log once for each key of a filter that it has no index: a search of the graph then misses much of what passes."""
    if resolved.points < FEW_POINTS:
        return
    for key in sorted(keys_of(conditions) - resolved.indexed_keys - resolved.told_keys):
        resolved.told_keys.add(key)
        logger.warning(
            "collection %r: a filter asks for %r, which has no payload index: searches with it are slow and miss "
            "points that pass. Create the index: care-ingest --index %s, or create_payload_index of the client",
            resolved.name,
            key,
            key,
        )


def sparse_search(
    resolved: ResolvedCollection,
    terms: SparseQuery,
    *,
    filter: models.Filter | None,  # noqa: A002
    top_k: int | None = None,
) -> models.Prefetch | None:
    """Return the search of a query in the sparse vector of a collection; None for a query without terms."""
    if isinstance(terms, models.SparseVector) and not terms.indices:
        return None
    return models.Prefetch(query=terms, using=resolved.sparse_vector_name, filter=filter, limit=top_k)
