"""nDCG, recall and reciprocal rank of rankings whose relevant documents are known, one value a query, from 0 to 1.

Relevance is binary, and the first ten places count. Graded labels, deeper rankings and ties as TREC breaks them are
left to the benchmark harness, which uses ir_measures; on binary labels both give the same values.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TOP = 10
"""Places of a ranking that count."""
_DISCOUNTS = 1 / np.log2(np.arange(TOP) + 2)

_RESAMPLES = 2_000
_CONFIDENCE = 0.95

Rankings = Sequence[Sequence[object]]
"""Ids of the documents that each query found, best first."""
Relevant = Sequence[Collection[object]]
"""Ids of the relevant documents of each query, at least one."""


def ndcg_at_10(rankings: Rankings, relevant: Relevant) -> list[float]:
    """Return the normalised discounted cumulative gain of each query."""
    return [
        float(sum(_DISCOUNTS[rank] for rank, id_ in enumerate(best[:TOP]) if id_ in ids) / _DISCOUNTS[: len(ids)].sum())
        for best, ids in zip(rankings, relevant, strict=True)
    ]


def recall_at_10(rankings: Rankings, relevant: Relevant) -> list[float]:
    """Return the fraction of each query's relevant documents that it found."""
    return [len({*best[:TOP]} & {*ids}) / len(ids) for best, ids in zip(rankings, relevant, strict=True)]


def reciprocal_rank_at_10(rankings: Rankings, relevant: Relevant) -> list[float]:
    """Return 1 / rank of each query's first relevant document; 0 where it is beyond the tenth place."""
    return [
        next((1 / rank for rank, id_ in enumerate(best[:TOP], start=1) if id_ in ids), 0.0)
        for best, ids in zip(rankings, relevant, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions, from 0 to 1."""

    mean: float
    low: float
    """Lower end of the 95 % interval, by the percentile bootstrap over questions."""
    high: float


def estimate(scores: Sequence[float], seed: int) -> Estimate:
    """Return the mean of some scores with its 95 % interval by the percentile bootstrap."""
    values: npt.NDArray[np.float64] = np.array(scores)
    generator = np.random.default_rng([seed, 5])
    means = [generator.choice(values, len(values)).mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return Estimate(round(float(values.mean()), 4), round(float(low), 4), round(float(high), 4))
