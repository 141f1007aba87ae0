"""Scores per query, from ir_measures: a query without an answer scores 0, and every judged query counts.

mteb averages over the queries that a run answers; a system that stays silent on hard queries would gain by it.
"""

from collections.abc import Mapping, Sequence

import ir_measures
import numpy as np
import numpy.typing as npt
from scipy import stats

from care_benchmarks.taskfiles import Qrels

Run = Mapping[str, Mapping[str, float]]
"""Query id → document id → score; the order of equal scores is TREC's (by document id, descending)."""

RANKING_MEASURES = ("nDCG@10", "AP@10", "AP", "RR@10", "R@100")
"""``AP@10`` divides by all relevant documents, as trec_eval's map_cut_10 and mteb's map_at_10 do."""


def per_query(qrels: Qrels, run: Run) -> dict[str, dict[str, float]]:
    """Give measure → query id → score, for each query of the qrels, in their order."""
    measures = [ir_measures.parse_measure(name) for name in RANKING_MEASURES]
    scores: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in RANKING_MEASURES}
    judged = {query: dict(documents) for query, documents in run.items() if query in qrels and documents}
    for metric in ir_measures.iter_calc(measures, qrels, judged):
        scores[str(metric.measure)][metric.query_id] = float(metric.value)
    return scores


def pearson_shares(labels: Sequence[float], similarities: Sequence[float]) -> npt.NDArray[np.float64]:
    """Give each pair's share of Pearson's correlation: shape (n,), and its mean is the correlation itself.

    The shares make STS comparable pair by pair, as queries are in retrieval. A constant side correlates with
    nothing: all shares are 0.
    """
    return _standardised(labels) * _standardised(similarities)


def spearman(labels: Sequence[float], similarities: Sequence[float]) -> float:
    """Give Spearman's rank correlation."""
    return float(stats.spearmanr(labels, similarities).statistic)


def _standardised(values: Sequence[float]) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.zeros_like(array) if np.ptp(array) == 0 else np.asarray(stats.zscore(array))
