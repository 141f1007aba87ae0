"""One LlamaIndex query as requests to Qdrant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from qdrant_client import models

from care_qdrant.search.fusion import CANDIDATES, DEFAULT_ALPHA

Points = Sequence[models.ScoredPoint]

MODES = (
    VectorStoreQueryMode.DEFAULT,
    VectorStoreQueryMode.SPARSE,
    VectorStoreQueryMode.HYBRID,
    VectorStoreQueryMode.MMR,
)
"""Of queries that are answered; the stock store answers all others, and MMR, as if they were the first."""


@dataclass(frozen=True, slots=True)
class Diversity:
    """Of an MMR query (maximal marginal relevance)."""

    query: list[float]
    threshold: float | None
    """1 asks for likeness to the query alone, 0 for unlikeness to better answers alone; None is LlamaIndex's 0.5."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a query asks of the dense vector and of the sparse one; None for what it does not ask."""

    dense: models.Prefetch | None
    sparse: models.Prefetch | None
    shard_key: Any | None
    top_k: int
    """Points to give back."""
    alpha: float
    """Share of the dense score in a hybrid query."""
    diversity: Diversity | None
    """How unlike each other the answers of an MMR query must be; None in other modes."""

    @property
    def is_hybrid(self) -> bool:
        """Whether there are two lists to put together."""
        return self.dense is not None and self.sparse is not None

    def requests(self) -> list[models.QueryRequest]:
        """Give one request per list; candidates for the fusion where there are two."""
        limit = self.top_k if not self.is_hybrid and self.diversity is None else max(CANDIDATES, self.top_k)
        leaves = [leaf for leaf in (self.dense, self.sparse) if leaf is not None]
        return [
            models.QueryRequest(
                query=leaf.query,
                using=leaf.using,
                filter=leaf.filter,
                params=leaf.params,
                limit=leaf.limit or limit,
                shard_key=self.shard_key,
                with_payload=True,
                with_vector=([leaf.using] if leaf.using else True) if self.diversity is not None else None,
            )
            for leaf in leaves
        ]


def question(
    query: VectorStoreQuery,
    terms: models.SparseVector | None,
    *,
    vector_name: str,
    sparse_vector_name: str,
    filter: models.Filter | None,  # noqa: A002  # the word of Qdrant
    params: models.SearchParams | None,
    shard_key: Any | None,
    mmr_threshold: float | None = None,
) -> Question:
    """Put a query into Qdrant's words.

    Args:
        query: As LlamaIndex asks it.
        terms: Its sparse vector; None where it has none, or none is asked for.
        vector_name: Of the dense vector.
        sparse_vector_name: Of the sparse vector.
        filter: Of both lists.
        params: Of the search.
        shard_key: Of the shards to ask.
        mmr_threshold: Of an MMR query (`Diversity.threshold`).

    Raises:
        ValueError: the query has a mode that is not answered here.
    """
    if query.mode not in MODES:
        answered = ", ".join(mode.value for mode in MODES)
        raise ValueError(f"CareVectorStore answers queries of mode {answered}, none of mode {query.mode.value}")
    is_sparse, is_hybrid = (query.mode == mode for mode in (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID))
    dense = sparse = diversity = None
    if not is_sparse or query.query_str is None:
        dense = models.Prefetch(query=query.query_embedding, using=vector_name, filter=filter, params=params)
    if query.mode == VectorStoreQueryMode.MMR and query.query_embedding is not None:
        diversity = Diversity(query.query_embedding, mmr_threshold)
    if terms is not None:
        sparse = models.Prefetch(query=terms, using=sparse_vector_name, filter=filter, limit=query.sparse_top_k)
    return Question(
        dense,
        sparse,
        shard_key,
        top_k=(query.hybrid_top_k if is_hybrid else None) or query.similarity_top_k,
        alpha=DEFAULT_ALPHA if query.alpha is None else query.alpha,
        diversity=diversity,
    )


def weighted(dense: Points, sparse: Points, alpha: float, top_k: int) -> list[models.ScoredPoint]:
    """Fuse lists whose scores have no common scale: each between 0 for its last and 1 for its first point.

    For sparse encoders whose scores say nothing by themselves; BM25 has a better way (`care_qdrant.search.fusion`).
    """
    points = {point.id: point for point in (*sparse, *dense)}
    scores = dict.fromkeys(points, 0.0)
    for listed, weight in ((dense, alpha), (sparse, 1 - alpha)):
        for point, score in zip(listed, _scaled(listed), strict=True):
            scores[point.id] += weight * score
    best = sorted(scores, key=lambda point_id: -scores[point_id])[:top_k]
    return [points[point_id].model_copy(update={"score": scores[point_id]}) for point_id in best]


def diverse(points: Points, vectors: Sequence[list[float]], wanted: Diversity, top_k: int) -> list[models.ScoredPoint]:
    """Choose points by maximal marginal relevance, as LlamaIndex's own store does, with its scores."""
    scores, places = get_top_k_mmr_embeddings(
        wanted.query, list(vectors), similarity_top_k=top_k, mmr_threshold=wanted.threshold
    )
    return [points[place].model_copy(update={"score": score}) for score, place in zip(scores, places, strict=True)]


def clipped(points: Points) -> list[models.ScoredPoint]:
    """Give the points with scores from 0 to 1: very long matches of BM25 go beyond, and opposed vectors below."""
    return [point.model_copy(update={"score": min(max(point.score, 0.0), 1.0)}) for point in points]


def _scaled(points: Points) -> list[float]:
    if not points:
        return []
    best, worst = points[0].score, points[-1].score
    return [(point.score - worst) / (best - worst) if best > worst else 1.0 for point in points]
