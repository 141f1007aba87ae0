"""Bootstrap intervals, paired randomisation tests and Holm's correction."""

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
"""Resamples held in memory at once: 512 × 5,000 doubles are 20 MB."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % bootstrap confidence interval."""

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
    """Two-sided p-value of the paired randomisation test."""
    adjusted_p_value: float
    """p-value after Holm's correction over all comparisons of one task."""


def mean_interval(values: Sequence[float] | Sample) -> Interval:
    """Return the interval of a mean, by the percentile bootstrap, which unlike BCa is defined for constant scores."""
    return _bootstrap((np.asarray(values, dtype=np.float64),), np.mean, paired=False)


def pearson_interval(labels: Sequence[float], similarities: Sequence[float]) -> Interval:
    """Return the interval of a Pearson correlation, by resampling whole pairs."""
    samples = np.asarray(labels, dtype=np.float64), np.asarray(similarities, dtype=np.float64)
    if min(np.ptp(sample) for sample in samples) == 0:
        return Interval(0.0, 0.0)
    return _bootstrap(samples, _pearson, paired=True)


def randomisation_p_value(base: Sequence[float] | Sample, other: Sequence[float] | Sample) -> float:
    """Return the two-sided p-value of the null hypothesis that the systems are exchangeable on every query.

    The value is exact if all sign flips can be enumerated, else it is estimated from `RESAMPLES` random ones (Smucker
    et al., CIKM 2007).
    """
    difference = np.asarray(other, dtype=np.float64) - np.asarray(base, dtype=np.float64)
    if not difference.any():
        return 1.0
    test = stats.permutation_test(
        (difference,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(SEED),
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's step-down correction, in the same order (Holm, 1979)."""
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


def _bootstrap(samples: tuple[Sample, ...], statistic: object, *, paired: bool) -> Interval:
    if len(samples[0]) < 2:
        value = float(samples[0].mean())
        return Interval(value, value)
    interval = stats.bootstrap(
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
    return Interval(float(interval.low), float(interval.high))


def _pearson(first: Sample, second: Sample, axis: int) -> Sample:
    first_centred = first - first.mean(axis=axis, keepdims=True)
    second_centred = second - second.mean(axis=axis, keepdims=True)
    scale = np.sqrt((first_centred**2).sum(axis=axis) * (second_centred**2).sum(axis=axis))
    return np.asarray((first_centred * second_centred).sum(axis=axis) / np.where(scale == 0, 1.0, scale))
