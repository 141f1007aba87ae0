"""Fusion of the dense and the sparse answer to one query, in one request that Qdrant computes.

``linear`` (the default) scores every candidate with::

    alpha * cosine + (1 - alpha) * BM25 / (10 * length of the query's term vector)

Both scores are absolute, so nothing depends on which other points were found, or on the number of shards. The length
(for terms that occur once, the root of their number) takes the query's out of BM25, which sums over terms; the ten
brings both to one scale: half of the best BM25 scores of real patient questions lie between 6 and 12 times the length.
Candidates are the best `CANDIDATES` of both kinds, and each is scored by both: without that, a point that only one list
holds would count as 0 in the other, which no cosine of a language model is. Of a vector that is compared by Euclidean
distance, ``1 - distance² / 2`` takes the place of the cosine: for unit vectors the two are equal.

``rrf``: Qdrant's reciprocal-rank fusion, which needs no scale: for sparse vectors of other encoders. ``alpha`` makes
the weights of the ranks, which sum to 2: at 0.5 both lists count the same.

``dbsf``: Qdrant's distribution-based fusion, where both lists always count the same.

Which is best was measured, not argued (docs/evidence/experiments.md).
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

from qdrant_client import models

from care_qdrant.errors import InputError, require_choice

Fusion = Literal["linear", "dbsf", "rrf"]

DEFAULT_ALPHA = 0.5
"""Share of the dense score, or rank, from 0 (the sparse list alone) to 1 (the dense list alone)."""

CANDIDATES = 100
"""Number of candidates of each kind of vector."""

BM25_SCALE = 10.0

NEAREST_LEAST = (models.Distance.EUCLID, models.Distance.MANHATTAN)
"""Distances where lower is better; with all others, higher is."""
_EUCLID = models.Distance.EUCLID


def require_fusion(fusion: str) -> None:
    """Refuse an unknown fusion."""
    require_choice("fusion", fusion, get_args(Fusion))


def fused_request(
    dense: models.Prefetch,
    sparse: models.Prefetch,
    *,
    fusion: Fusion,
    alpha: float,
    limit: int,
    max_limit: int | None = None,
    distance: models.Distance = models.Distance.COSINE,
) -> models.QueryRequest:
    """Build the request for the best points by both vectors.

    Raises:
        InputError: The fusion adds up scores, and those of the dense vector have no scale that BM25 could be added to.
    """
    if distance in NEAREST_LEAST and (fusion == "dbsf" or (fusion == "linear" and distance is not _EUCLID)):
        raise InputError(
            f"the dense vector is compared by {distance.value} distance, which {fusion} cannot add to BM25: take rrf, "
            "or a dense or sparse search"
        )
    offered = candidates(limit, fusion=fusion, max_limit=max_limit)
    leaves = [leaf.model_copy(update={"limit": offered}) for leaf in (dense, sparse)]
    if fusion == "linear":
        prefetch = [_rescored(leaves, by=leaf) for leaf in leaves]
        return models.QueryRequest(
            prefetch=prefetch, query=_formula(sparse, alpha, distance), limit=limit, with_payload=True
        )
    query: models.FusionQuery | models.RrfQuery = models.FusionQuery(fusion=models.Fusion(fusion))
    if fusion == "rrf" and alpha != DEFAULT_ALPHA:
        query = models.RrfQuery(rrf=models.Rrf(weights=_rank_weights(alpha)))
    return models.QueryRequest(prefetch=leaves, query=query, limit=limit, with_payload=True)


def _rank_weights(alpha: float) -> list[float]:
    """Return the weights of the dense and the sparse ranks; Qdrant's own is 1 for each."""
    return [2 * alpha, 2 * (1 - alpha)]


def candidates(limit: int, *, fusion: Fusion | None, max_limit: int | None) -> int:
    """Return the number of candidates of each kind of vector."""
    required = max(CANDIDATES, limit)
    if max_limit is None:
        return required
    return min(required, max(1, max_limit // 2 if fusion == "linear" else max_limit))


def bm25_weight(terms: Sequence[float]) -> float:
    """Return the factor that brings BM25 scores to the scale of a cosine, by the values of a query's term vector."""
    return 1 / (BM25_SCALE * (math.hypot(*terms) or 1))


def _rescored(leaves: list[models.Prefetch], *, by: models.Prefetch) -> models.Prefetch:
    """Return the candidates of all leaves, each with its exact score by one of them."""
    limit = sum(leaf.limit or 0 for leaf in leaves)
    # The parameters of a dense search are for its graph, and here are all candidates.
    params = by.params if by.params is not None and by.params.idf is not None else None
    # Validation would walk the vector again.
    return models.Prefetch.model_construct(prefetch=leaves, query=by.query, using=by.using, params=params, limit=limit)


def _formula(sparse: models.Prefetch, alpha: float, distance: models.Distance) -> models.FormulaQuery:
    assert isinstance(sparse.query, models.SparseVector)
    # A candidate has no score where it shares no term with the query, or lacks the dense vector (an unfinished attach).
    defaults = {"$score[0]": 0.0, "$score[1]": 0.0}
    parts: list[models.Expression] = [models.MultExpression(mult=[alpha, "$score[0]"])]
    if distance is _EUCLID:
        parts = [alpha, models.MultExpression(mult=[-alpha / 2, "$score[0]", "$score[0]"])]
        defaults["$score[0]"] = math.sqrt(2)  # a similarity of 0
    parts.append(models.MultExpression(mult=[(1 - alpha) * bm25_weight(sparse.query.values), "$score[1]"]))
    return models.FormulaQuery(formula=models.SumExpression(sum=parts), defaults=defaults)
