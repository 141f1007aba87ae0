"""Scores per query, computed by ir_measures: a query without an answer scores 0, and every judged query counts.

mteb averages over the queries that a run answers, so a system that returns nothing for hard queries would gain by it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import ir_measures
import numpy as np
import numpy.typing as npt
from scipy import stats

Kind = Literal["retrieval", "rerank", "sts"]

MAIN_MEASURE: dict[Kind, str] = {"retrieval": "nDCG@10", "rerank": "AP@10", "sts": "Pearson"}
"""The measure that the paper reports for each kind of task (its versions say MAP or MAP@10: AP@100 and AP@10)."""

Qrels = dict[str, dict[str, int]]
"""Query id → document id → grade; 0 means judged and not relevant."""

Run = Mapping[str, Mapping[str, float]]
"""Query id → document id → score; equal scores are ordered as TREC does (by document id, descending)."""

RANKING_MEASURES = ("nDCG@10", "AP@10", "AP@100", "RR@10", "R@100", "Judged@10")
"""Each names its depth: a task decides how many documents are retrieved, 100 or 1,000, and AP without a depth would be
of that number. AP divides by all relevant documents, as trec_eval's map_cut and mteb's map_at do."""


CONDENSED = "condensed nDCG@10"
"""nDCG@10 of the ranking without its unjudged documents (Sakai, 2007): nDCG@10 counts them as irrelevant. Where only
relevant documents are judged it says little, as no irrelevant one is left to be ranked too high."""
_CONDENSED_DEPTH = 100
"""Documents of a ranking that are condensed: all that local tasks retrieve, so that tasks of mteb compare."""


def per_query(qrels: Qrels, run: Run) -> dict[str, dict[str, float]]:
    """Score every query of the qrels with every ranking measure, and with `CONDENSED`."""
    measures = [ir_measures.parse_measure(name) for name in RANKING_MEASURES]
    scores: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in RANKING_MEASURES}
    judged = {query: _without_ties(documents) for query, documents in run.items() if query in qrels and documents}
    for metric in ir_measures.iter_calc(measures, qrels, judged):
        scores[str(metric.measure)][metric.query_id] = float(metric.value)
    known = {query: _condensed(ranks, qrels[query]) for query, ranks in judged.items()}
    scores[CONDENSED] = dict.fromkeys(qrels, 0.0)
    for metric in ir_measures.iter_calc(measures[:1], qrels, {query: ranks for query, ranks in known.items() if ranks}):
        scores[CONDENSED][metric.query_id] = float(metric.value)
    return scores


def _condensed(ranks: Mapping[str, float], grades: Mapping[str, int]) -> dict[str, float]:
    return {name: rank for name, rank in list(ranks.items())[:_CONDENSED_DEPTH] if name in grades}


def _without_ties(answers: Mapping[str, float]) -> dict[str, float]:
    """Return scores that rank as `ranked` does: the providers of ir_measures break ties in different ways."""
    return {document: float(-rank) for rank, document in enumerate(ranked(answers))}


def ranked(answers: Mapping[str, float]) -> list[str]:
    """Return the document ids of one query, best first, with ties broken as TREC breaks them."""
    return sorted(answers, key=lambda document: (answers[document], document), reverse=True)


def pearson_shares(labels: Sequence[float], similarities: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the contribution of each pair to Pearson's correlation: shape (n,), with the correlation as its mean.

    The contributions make STS comparable pair by pair, as queries are in retrieval. If one side is constant, all
    contributions are 0.
    """
    return _standardised(labels) * _standardised(similarities)


def spearman(labels: Sequence[float], similarities: Sequence[float]) -> float:
    """Return Spearman's rank correlation, from -1 to 1; 0 if one side is constant, as for Pearson's."""
    if np.ptp(labels) == 0 or np.ptp(similarities) == 0:
        return 0.0
    return float(stats.spearmanr(labels, similarities).statistic)


def _standardised(values: Sequence[float]) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.zeros_like(array) if np.ptp(array) == 0 else np.asarray(stats.zscore(array))
