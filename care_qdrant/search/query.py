"""A query: its requests to Qdrant, and the hits of the answers."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import sparse_vector
from care_qdrant.encoders.terms.sparse import SparseQuery
from care_qdrant.errors import InputError
from care_qdrant.qdrant.readable import TENANT_IDF_SINCE
from care_qdrant.search.conditions import keys_of, tenant_conditions
from care_qdrant.search.fusion import (
    DEFAULT_ALPHA,
    NEAREST_LEAST,
    Fusion,
    candidates,
    fused_request,
)
from care_qdrant.search.resolved import ResolvedCollection
from care_qdrant.types import Hit, TermVector

logger = logging.getLogger(__name__)

FEW_POINTS = 10_000
"""Least number of points from which on a filter on a key without an index is slow."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query: vector, terms, filter and fusion."""

    vector: list[float] | None
    """Vector of the query; None searches by the terms alone. Without both, points come in the order of their ids."""
    terms: TermVector | SparseQuery | None
    """Terms of the query; None where the sparse vector is not searched. A text may also have no terms at all."""
    top_k: int
    filter: models.Filter | None = None
    params: models.SearchParams | None = None
    """Parameters of the dense search."""
    fusion: Fusion | None = "linear"
    """Fusion of the two lists by Qdrant; None if the caller fuses them."""
    alpha: float | None = None
    """Share of the dense list in a fused score, from 0 to 1; None takes that of the collection."""
    score_threshold: float | None = None
    """Least score of a hit, on the scale that hits have (a distance: the largest); None for all. Where the caller fuses
    two lists, it is the caller's to apply."""
    part: models.Filter | None = None
    """Restricts the points further; unlike the filter, it changes no score."""
    sparse_top_k: int | None = None
    """Candidates of the sparse vector if the caller fuses; None takes as many as of the dense one."""
    with_vectors: bool = False
    """Return candidates with their dense vector, from which the caller chooses ``top_k``."""
    shard_key: models.ShardKeySelector | None = None
    """Shards to search; None for all."""

    @property
    def has_terms(self) -> bool:
        """Whether the sparse vector has a term to match."""
        return self.terms is not None and (isinstance(self.terms, models.Document) or bool(self.terms.indices))

    @property
    def is_hybrid(self) -> bool:
        """Whether there are two lists to fuse."""
        return self.vector is not None and self.has_terms

    def alpha_in(self, resolved: ResolvedCollection) -> float:
        """Return the share of the dense list: the caller's, or in the linear fusion the collection's."""
        if self.alpha is None:
            return resolved.alpha if self.fusion == "linear" else DEFAULT_ALPHA
        if not 0 <= self.alpha <= 1:  # below 0 or above 1, the points that one list likes least would come first
            raise InputError(f"alpha is {self.alpha}; it is the share of the dense list, from 0 to 1")
        if self.fusion == "dbsf" and self.alpha != DEFAULT_ALPHA:
            raise InputError(f"alpha is {self.alpha}, and dbsf takes both lists alike: leave it out, or take rrf")
        return self.alpha

    def has_comparable_scores(self) -> bool:
        """Return whether a score does not depend on the other hits; ranks do."""
        return not self.is_hybrid or self.fusion == "linear"

    def is_nearest_least(self, resolved: ResolvedCollection) -> bool:
        """Return whether scores are distances, where lower is better."""
        return self.vector is not None and not self.is_hybrid and resolved.distance in NEAREST_LEAST

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
                distance=resolved.distance or models.Distance.COSINE,
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

    def lists(
        self, resolved: ResolvedCollection, answers: list[list[models.ScoredPoint]]
    ) -> list[list[models.ScoredPoint]]:
        """Return the lists of the answers to `requests`, without the hits below the threshold."""
        least = self.score_threshold
        if least is None or (self.is_hybrid and self.fusion is None):
            return answers
        if not self.has_comparable_scores():
            raise InputError(
                f"score_threshold is {least}, and a score of {self.fusion} tells the rank of a hit and not how well it "
                "matches: take the linear fusion, or a dense or sparse search"
            )
        sign = -1 if self.is_nearest_least(resolved) else 1
        return [[point for point in points if sign * point.score >= sign * least] for points in answers]

    @property
    def _passing(self) -> models.Filter | None:
        """Filter of the points to look at."""
        if self.filter is None or self.part is None:
            return self.filter or self.part
        return models.Filter(must=[self.filter, self.part])

    def _sparse(self, resolved: ResolvedCollection) -> models.Prefetch:
        return models.Prefetch(
            query=sparse_vector(self.terms) if isinstance(self.terms, TermVector) else self.terms,
            using=resolved.sparse_vector_name,
            filter=self._passing,
            params=self._tenant_idf(resolved),
            limit=self.sparse_top_k if self.fusion is None else None,
        )

    def _tenant_idf(self, resolved: ResolvedCollection) -> models.SearchParams | None:
        """Return the parameters by which the IDF of a term counts the documents of the filtered tenant only."""
        params = resolved.schema.sparse.get(resolved.sparse_vector_name or "")
        if self.filter is None or params is None or params.modifier is not models.Modifier.IDF:
            return None
        tenant = tenant_conditions(self.filter, resolved.schema.tenant_keys)
        if not tenant or not resolved.collection.is_since(TENANT_IDF_SINCE):
            return None
        return models.SearchParams(idf=models.IdfCorpusParams(corpus=models.Filter(must=tenant)))

    def _dense(self, resolved: ResolvedCollection) -> models.Prefetch:
        """Return the dense search with the parameters that quantization, the graph and a filter need."""
        given = self.params or models.SearchParams()
        added: dict[str, Any] = {"quantization": resolved.quantization}
        if self.vector is not None and resolved.schema.has_index and not given.exact:  # searched by the graph
            added["hnsw_ef"] = resolved.hnsw_ef
            if passing := [each for each in (resolved.schema.mandatory, self._passing) if each is not None]:
                _log_unindexed(resolved, models.Filter(must=list(passing)))
                added["acorn"] = models.AcornSearchParams(enable=True)
        added = {name: value for name, value in added.items() if value is not None and getattr(given, name) is None}
        params = given.model_copy(update=added) if added else self.params
        return models.Prefetch(query=self.vector, using=resolved.vector_name, filter=self._passing, params=params)


def find(resolved: ResolvedCollection, queries: Sequence[Query], what: str = "searching") -> list[list[list[Hit]]]:
    """Search a collection in one call, and return the hits of each list of each query, best first."""
    requests = [query.requests(resolved) for query in queries]
    answers = iter(resolved.collection.search(what, [request for own in requests for request in own]))
    lists_by_query = [
        query.lists(resolved, [next(answers) for _ in own]) for query, own in zip(queries, requests, strict=True)
    ]
    return [[[resolved.read(point) for point in points] for points in lists] for lists in lists_by_query]


def _log_unindexed(resolved: ResolvedCollection, conditions: models.Filter) -> None:
    """Log once that keys of a filter have no index: a graph search then misses many matching points."""
    missing = keys_of(conditions) - resolved.schema.payload_schema.keys() - resolved.told_keys
    if resolved.schema.points < FEW_POINTS or not missing:
        return
    resolved.told_keys.update(missing)
    logger.warning(
        "collection %r: a filter asks for %s without a payload index: searches with it are slow and miss points that "
        "pass. Create the index, of the key that the points have: care-ingest --index KEY, or create_payload_index of "
        "the client",
        resolved.name,
        ", ".join(map(repr, sorted(missing))),
    )
