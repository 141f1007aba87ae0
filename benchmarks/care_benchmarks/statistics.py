"""How far a difference can be trusted: bootstrap intervals, paired randomisation tests, Holm's correction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Sample = npt.NDArray[np.float64]

RESAMPLES = 9_999
CONFIDENCE = 0.95
SEED = 20260413
_BATCH = 512
"""Resamples held in memory at once: 512 × 5,000 pairs of doubles are 20 MB."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A bootstrap confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """System ``other`` against ``base`` on the same queries."""

    base: str
    other: str
    difference: float
    """Mean of other minus base."""
    interval: Interval
    p_value: float
    """Two-sided, of the paired randomisation test."""
    adjusted_p_value: float
    """After Holm's correction over all comparisons of one task."""


def mean_interval(values: Sequence[float] | Sample) -> Interval:
    """Give the interval of a mean. Percentile bootstrap: it is defined for constant scores, too, where BCa is not."""
    return _bootstrap((np.asarray(values, dtype=np.float64),), _mean, paired=False)


def pearson_interval(labels: Sequence[float], similarities: Sequence[float]) -> Interval:
    """Give the interval of a Pearson correlation, resampling whole pairs."""
    samples = np.asarray(labels, dtype=np.float64), np.asarray(similarities, dtype=np.float64)
    if min(np.ptp(sample) for sample in samples) == 0:
        return Interval(0.0, 0.0)
    return _bootstrap(samples, _pearson, paired=True)


def randomisation_p_value(base: Sequence[float] | Sample, other: Sequence[float] | Sample) -> float:
    """Give the two-sided p-value of "the two systems are exchangeable on every query".

    Exact where all sign flips can be enumerated, else from `RESAMPLES` random ones (Smucker et al., CIKM 2007).
    """
    difference = np.asarray(other, dtype=np.float64) - np.asarray(base, dtype=np.float64)
    if not difference.any():
        return 1.0
    test = stats.permutation_test(
        (difference,),
        _mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(SEED),
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Give the p-values after Holm's step-down correction, in their order (Holm, 1979)."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return [float(value) for value in adjusted]


def compare_with_base(base: str, scores: Mapping[str, Sequence[float] | Sample]) -> list[Comparison]:
    """Compare every other system with ``base``, over scores per query in one common order."""
    others = [name for name in scores if name != base]
    reference = np.asarray(scores[base], dtype=np.float64)
    adjusted = holm(p_values := [randomisation_p_value(reference, scores[name]) for name in others])
    comparisons = []
    for name, p_value, corrected in zip(others, p_values, adjusted, strict=True):
        difference = np.asarray(scores[name], dtype=np.float64) - reference
        interval = mean_interval(difference)
        comparisons.append(Comparison(base, name, float(difference.mean()), interval, p_value, corrected))
    return comparisons


def resampled_means(scores: Sample) -> Sample:
    """Give bootstrap means (`RESAMPLES`, systems) of scores (systems, seeds, queries), queries and seeds redrawn.

    Every system is given the same draws, so that what is derived of two columns is paired. With few seeds their part
    of the spread is underestimated: of three, one resample in nine is a single seed.
    """
    systems, seeds, queries = scores.shape
    random = np.random.default_rng(SEED)
    means = np.empty((RESAMPLES, systems))
    for start in range(0, RESAMPLES, _BATCH):
        count = min(_BATCH, RESAMPLES - start)
        of_queries = random.multinomial(queries, np.full(queries, 1 / queries), count) / queries
        of_seeds = random.multinomial(seeds, np.full(seeds, 1 / seeds), count) / seeds
        means[start : start + count] = np.einsum("syq,rq,ry->rs", scores, of_queries, of_seeds, optimize=True)
    return means


def percentiles(values: Sample) -> Interval:
    """Give the interval that holds `CONFIDENCE` of resampled values."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))


def _bootstrap(samples: tuple[Sample, ...], statistic: object, *, paired: bool) -> Interval:
    if len(samples[0]) < 2:
        value = float(samples[0].mean())
        return Interval(value, value)
    found = stats.bootstrap(
        samples,
        statistic,
        paired=paired,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def _mean(sample: Sample, axis: int) -> Sample:
    return np.asarray(sample.mean(axis=axis))


def _pearson(first: Sample, second: Sample, axis: int) -> Sample:
    one = first - first.mean(axis=axis, keepdims=True)
    two = second - second.mean(axis=axis, keepdims=True)
    scale = np.sqrt((one**2).sum(axis=axis) * (two**2).sum(axis=axis))
    return np.asarray((one * two).sum(axis=axis) / np.where(scale == 0, 1.0, scale))
