"""The order and the scores of hits that Qdrant does not give as LlamaIndex wants them."""

from collections.abc import Sequence
from dataclasses import replace

from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings

from care_qdrant import Hit


def fuse_by_scaled_score(dense: Sequence[Hit], sparse: Sequence[Hit], alpha: float, top_k: int) -> list[Hit]:
    """Fuse lists whose scores have no common scale: each between 0 for its last and 1 for its first hit.

    For sparse encoders whose scores say nothing by themselves; BM25 has a better way (`care_qdrant.search.fusion`).
    """
    hits = {hit.point_id: hit for hit in (*sparse, *dense)}
    scores = dict.fromkeys(hits, 0.0)
    for listed, weight in ((dense, alpha), (sparse, 1 - alpha)):
        for hit, score in zip(listed, _scaled(listed), strict=True):
            scores[hit.point_id] += weight * score
    best = sorted(scores, key=lambda point_id: -scores[point_id])[:top_k]
    return [replace(hits[point_id], score=scores[point_id]) for point_id in best]


def choose_diverse(hits: Sequence[Hit], query: list[float], threshold: float | None, top_k: int) -> list[Hit]:
    """Choose hits by maximal marginal relevance, as LlamaIndex's own store does, with its scores."""
    vectors = [list(hit.vector or ()) for hit in hits]
    scores, places = get_top_k_mmr_embeddings(query, vectors, similarity_top_k=top_k, mmr_threshold=threshold)
    return [replace(hits[place], score=score) for score, place in zip(scores, places, strict=True)]


def clip_scores(hits: Sequence[Hit]) -> list[Hit]:
    """Return hits with scores from 0 to 1: very long matches of BM25 go beyond, and opposed vectors below."""
    return [hit if 0.0 <= hit.score <= 1.0 else replace(hit, score=min(max(hit.score, 0.0), 1.0)) for hit in hits]


def _scaled(hits: Sequence[Hit]) -> list[float]:
    if not hits:
        return []
    best, worst = hits[0].score, hits[-1].score
    return [(hit.score - worst) / (best - worst) if best != worst else 1.0 for hit in hits]  # distances grow
