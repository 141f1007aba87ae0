"""Agreement of raters, with missing votes: Fleiss' and Cohen's kappa, Krippendorff's alpha, bootstrap intervals.

Every measure is a function of sums over items, so that an interval over resampled questions costs one multiplication.
Fleiss' kappa (1971) takes items with different numbers of votes as Krippendorff's alpha (2011) does: those with two
at least.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from care_benchmarks.statistics import SEED, Interval

Floats = npt.NDArray[np.float64]
Votes = npt.NDArray[np.int64]
"""Shape (items, raters): categories from 0, and -1 for a missing vote."""
Level = Literal["nominal", "ordinal", "interval"]

RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure with its 95 % bootstrap interval over questions."""

    value: float
    """NaN where there are too few votes, or one category alone."""
    interval: Interval
    items: int
    """Items with at least two votes."""


def fleiss_kappa(votes: Votes, categories: int, clusters: Sequence[object] | None = None) -> Estimate:
    """Return Fleiss' kappa; 1 is agreement, 0 is chance."""
    counts = _paired(_counts(votes, categories))
    size = counts.sum(axis=1)
    agreeing = ((counts**2).sum(axis=1) - size) / (size * (size - 1))
    parts = np.column_stack([agreeing, np.ones_like(agreeing), counts])
    return _estimate(parts, _fleiss, _kept_clusters(votes, clusters))


def krippendorff_alpha(
    votes: Votes, categories: int, level: Level = "nominal", clusters: Sequence[object] | None = None
) -> Estimate:
    """Return Krippendorff's alpha; 1 is agreement, 0 is chance."""
    counts = _paired(_counts(votes, categories))
    size = counts.sum(axis=1)
    pairs = counts[:, :, None] * (counts[:, None, :] - np.eye(categories)) / (size - 1)[:, None, None]

    def alpha(sums: Floats) -> Floats:
        return _alpha(sums.reshape(-1, categories, categories), level)

    return _estimate(pairs.reshape(len(pairs), categories**2), alpha, _kept_clusters(votes, clusters))


def cohen_kappa(votes: Votes, categories: int, clusters: Sequence[object] | None = None) -> Estimate:
    """Return Cohen's kappa of two raters."""
    return _estimate(
        _confusions(votes, categories), lambda sums: _cohen(sums, categories), _kept_clusters(votes, clusters)
    )


def raw_agreement(votes: Votes, categories: int, clusters: Sequence[object] | None = None) -> Estimate:
    """Return the share of items on which two raters agree, from 0 to 1."""
    return _estimate(
        _confusions(votes, categories),
        lambda sums: _ratio(sums[:, :: categories + 1].sum(axis=1), sums.sum(axis=1)),
        _kept_clusters(votes, clusters),
    )


def _counts(votes: Votes, categories: int) -> Floats:
    return np.stack([(votes == category).sum(axis=1) for category in range(categories)], axis=1).astype(np.float64)


def _paired(counts: Floats) -> Floats:
    kept: Floats = counts[counts.sum(axis=1) >= 2]
    return kept


def _confusions(votes: Votes, categories: int) -> Floats:
    if votes.shape[1] != 2:
        raise ValueError(f"{votes.shape[1]} raters; Cohen's kappa is of two")
    kept = votes[(votes >= 0).all(axis=1)]
    if not len(kept):
        return np.zeros((0, categories**2))
    one_hot: Floats = np.eye(categories**2)[kept[:, 0] * categories + kept[:, 1]]
    return one_hot


def _kept_clusters(votes: Votes, clusters: Sequence[object] | None) -> npt.NDArray[np.int64]:
    """Return the number of the cluster of each item that has two votes."""
    kept = (votes >= 0).sum(axis=1) >= 2
    if clusters is None:
        return np.arange(int(kept.sum()))
    numbers: dict[object, int] = {}
    own = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return np.unique(np.asarray(own, dtype=np.int64)[kept], return_inverse=True)[1]


def _estimate(parts: Floats, measure: Callable[[Floats], Floats], clusters: npt.NDArray[np.int64]) -> Estimate:
    if len(parts) == 0:
        return Estimate(float("nan"), Interval(float("nan"), float("nan")), 0)
    sums = np.zeros((int(clusters.max()) + 1, parts.shape[1]))
    np.add.at(sums, clusters, parts)
    value = float(measure(sums.sum(axis=0, keepdims=True))[0])
    draw = np.random.default_rng(SEED)
    weights = draw.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES)
    found = measure(weights @ sums)
    found = found[np.isfinite(found)]
    low, high = np.percentile(found, [2.5, 97.5]) if len(found) else (np.nan, np.nan)
    return Estimate(value, Interval(float(low), float(high)), len(parts))


def _fleiss(sums: Floats) -> Floats:
    observed = _ratio(sums[:, 0], sums[:, 1])
    shares = sums[:, 2:] / sums[:, 2:].sum(axis=1, keepdims=True)
    expected = (shares**2).sum(axis=1)
    return _ratio(observed - expected, 1 - expected)


def _cohen(sums: Floats, categories: int) -> Floats:
    table = sums.reshape(-1, categories, categories)
    total = table.sum(axis=(1, 2))
    observed = _ratio(np.trace(table, axis1=1, axis2=2), total)
    expected = _ratio((table.sum(axis=2) * table.sum(axis=1)).sum(axis=1), total**2)
    return _ratio(observed - expected, 1 - expected)


def _alpha(pairs: Floats, level: Level) -> Floats:
    totals = pairs.sum(axis=2)
    count = totals.sum(axis=1)
    categories = pairs.shape[1]
    expected = totals[:, :, None] * (totals[:, None, :] - np.eye(categories))
    distance = _distance(totals, level)
    return 1 - _ratio((count - 1) * (pairs * distance).sum(axis=(1, 2)), (expected * distance).sum(axis=(1, 2)))


def _distance(totals: Floats, level: Level) -> Floats:
    categories = totals.shape[1]
    if level == "nominal":
        return 1 - np.eye(categories)
    if level == "interval":
        values = np.arange(categories, dtype=np.float64)
        return np.asarray((values[:, None] - values[None, :]) ** 2)
    # Ordinal: how many values lie between the two, half of their own counted.
    middle = np.cumsum(totals, axis=1) - totals / 2
    return np.asarray((middle[:, :, None] - middle[:, None, :]) ** 2)


def _ratio(above: Floats, below: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(above / np.where(np.abs(below) < 1e-15, np.nan, below))
