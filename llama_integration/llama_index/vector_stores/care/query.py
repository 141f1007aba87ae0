"""One LlamaIndex query as a plan, and what the client computes of its answers."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from qdrant_client import models

from care_qdrant.encoders.sparse import SparseQuery
from care_qdrant.search.fusion import DEFAULT_ALPHA, Fusion
from care_qdrant.search.plan import QueryPlan, dense_search, sparse_search
from care_qdrant.search.resolve import ResolvedCollection

Points = Sequence[models.ScoredPoint]

MODES = (
    VectorStoreQueryMode.DEFAULT,
    VectorStoreQueryMode.SPARSE,
    VectorStoreQueryMode.HYBRID,
    VectorStoreQueryMode.MMR,
)
"""Modes that are answered; the stock store answers all others, and MMR, as if they were the first."""
LEXICAL = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID)


def build_plan(
    query: VectorStoreQuery,
    terms: SparseQuery | None,
    resolved: ResolvedCollection,
    *,
    filter: models.Filter | None,  # noqa: A002  # the word of Qdrant
    params: models.SearchParams | None,
    shard_key: Any | None,
    fusion: Fusion | None,
) -> QueryPlan:
    """Return the plan of a LlamaIndex query."""
    if query.mode not in MODES:
        answered = ", ".join(mode.value for mode in MODES)
        raise ValueError(f"CareVectorStore answers queries of mode {answered}, none of mode {query.mode.value}")
    is_lexical = query.mode == VectorStoreQueryMode.SPARSE and query.query_str is not None
    hybrid_top_k = query.hybrid_top_k if query.mode == VectorStoreQueryMode.HYBRID else None
    alpha = resolved.alpha if fusion == "linear" else DEFAULT_ALPHA
    return QueryPlan(
        None if is_lexical else dense_search(resolved, query.query_embedding, filter=filter, params=params),
        None if terms is None else sparse_search(resolved, terms, filter=filter, top_k=query.sparse_top_k),
        hybrid_top_k or query.similarity_top_k,
        fusion=fusion,
        alpha=alpha if query.alpha is None else query.alpha,
        with_vectors=query.mode == VectorStoreQueryMode.MMR and query.query_embedding is not None,
        max_limit=resolved.limits.query,
        shard_key=shard_key,
    )


def fuse_by_scaled_score(dense: Points, sparse: Points, alpha: float, top_k: int) -> list[models.ScoredPoint]:
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


def choose_diverse(
    points: Points, vectors: list[list[float]], query: list[float], threshold: float | None, top_k: int
) -> list[models.ScoredPoint]:
    """Choose points by maximal marginal relevance, as LlamaIndex's own store does, with its scores."""
    scores, places = get_top_k_mmr_embeddings(query, vectors, similarity_top_k=top_k, mmr_threshold=threshold)
    return [points[place].model_copy(update={"score": score}) for score, place in zip(scores, places, strict=True)]


def clip_scores(points: Points) -> list[models.ScoredPoint]:
    """Return points with scores from 0 to 1: very long matches of BM25 go beyond, and opposed vectors below."""
    return [
        point if 0.0 <= point.score <= 1.0 else point.model_copy(update={"score": min(max(point.score, 0.0), 1.0)})
        for point in points
    ]


def _scaled(points: Points) -> list[float]:
    if not points:
        return []
    best, worst = points[0].score, points[-1].score
    return [(point.score - worst) / (best - worst) if best > worst else 1.0 for point in points]
