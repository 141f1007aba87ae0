"""Agreement of raters, with missing votes: Fleiss' and Cohen's kappa, Krippendorff's alpha, bootstrap intervals.

Every measure is a function of sums over items, so that an interval over resampled questions costs one multiplication.
Fleiss' kappa (1971) takes items with different numbers of votes as Krippendorff's alpha (2011) does: those with two
at least.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from care_benchmarks.statistics import SEED

Floats = npt.NDArray[np.float64]
Votes = npt.NDArray[np.int64]  # shape (items, raters): categories from 0, and -1 for a missing vote
Level = Literal["nominal", "ordinal"]

RESAMPLES = 1_000


class Estimate(NamedTuple):
    """A measure with its 95 % bootstrap interval over questions; NaN where too few vote, or one category is alone."""

    value: float
    low: float
    high: float
    items: int  # with at least two votes

    def plain(self) -> dict[str, Any]:
        """Return JSON values; None for what is not defined."""
        return {name: None if np.isnan(value) else value for name, value in self._asdict().items()}


def fleiss_kappa(votes: Votes, categories: int, clusters: Sequence[object] | None = None) -> Estimate:
    """Return Fleiss' kappa; 1 is agreement, 0 is chance."""
    counts = _counts(votes, categories)
    size = counts.sum(axis=1)
    agreeing = ((counts**2).sum(axis=1) - size) / (size * (size - 1))

    def kappa(sums: Floats) -> Floats:
        shares = sums[:, 2:] / sums[:, 2:].sum(axis=1, keepdims=True)
        observed, expected = _ratio(sums[:, 0], sums[:, 1]), (shares**2).sum(axis=1)
        return _ratio(observed - expected, 1 - expected)

    return _estimate(np.column_stack([agreeing, np.ones_like(agreeing), counts]), kappa, votes, clusters)


def krippendorff_alpha(
    votes: Votes, categories: int, level: Level = "nominal", clusters: Sequence[object] | None = None
) -> Estimate:
    """Return Krippendorff's alpha; 1 is agreement, 0 is chance."""
    counts = _counts(votes, categories)
    pairs = counts[:, :, None] * (counts[:, None, :] - np.eye(categories))
    pairs /= (counts.sum(axis=1) - 1)[:, None, None]

    def alpha(sums: Floats) -> Floats:
        table = sums.reshape(-1, categories, categories)
        totals = table.sum(axis=2)
        expected, distance = totals[:, :, None] * (totals[:, None, :] - np.eye(categories)), _distance(totals, level)
        observed = (totals.sum(axis=1) - 1) * (table * distance).sum(axis=(1, 2))
        return 1 - _ratio(observed, (expected * distance).sum(axis=(1, 2)))

    return _estimate(pairs.reshape(len(pairs), categories**2), alpha, votes, clusters)


def cohen_kappa(votes: Votes, categories: int, clusters: Sequence[object] | None = None) -> Estimate:
    """Return Cohen's kappa of two raters."""

    def kappa(sums: Floats) -> Floats:
        table = sums.reshape(-1, categories, categories)
        total = table.sum(axis=(1, 2))
        expected = _ratio((table.sum(axis=2) * table.sum(axis=1)).sum(axis=1), total**2)
        return _ratio(_ratio(np.trace(table, axis1=1, axis2=2), total) - expected, 1 - expected)

    return _estimate(_confusions(votes, categories), kappa, votes, clusters)


def raw_agreement(votes: Votes, categories: int, clusters: Sequence[object] | None = None) -> Estimate:
    """Return the share of items on which two raters agree, from 0 to 1."""

    def share(sums: Floats) -> Floats:
        return _ratio(sums[:, :: categories + 1].sum(axis=1), sums.sum(axis=1))

    return _estimate(_confusions(votes, categories), share, votes, clusters)


def _counts(votes: Votes, categories: int) -> Floats:
    """Return how often each category was chosen, of the items with two votes."""
    counts = np.stack([(votes == category).sum(axis=1) for category in range(categories)], axis=1).astype(np.float64)
    kept: Floats = counts[counts.sum(axis=1) >= 2]
    return kept


def _confusions(votes: Votes, categories: int) -> Floats:
    if votes.shape[1] != 2:
        raise ValueError(f"{votes.shape[1]} raters; Cohen's kappa is of two")
    kept = votes[(votes >= 0).all(axis=1)]
    one_hot: Floats = np.eye(categories**2)[kept[:, 0] * categories + kept[:, 1]]
    return one_hot


def _estimate(
    parts: Floats, measure: Callable[[Floats], Floats], votes: Votes, clusters: Sequence[object] | None
) -> Estimate:
    """Return a measure of the sums of ``parts``, which are of the items with two votes."""
    if len(parts) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    numbers: dict[object, int] = {}
    own = np.array([numbers.setdefault(each, len(numbers)) for each in clusters or range(len(votes))])
    _, places = np.unique(own[(votes >= 0).sum(axis=1) >= 2], return_inverse=True)
    sums = np.zeros((int(places.max()) + 1, parts.shape[1]))
    np.add.at(sums, places, parts)
    draws = np.random.default_rng(SEED).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES)
    found = measure(draws @ sums)
    found = found[np.isfinite(found)]
    low, high = np.percentile(found, [2.5, 97.5]) if len(found) else (np.nan, np.nan)
    return Estimate(float(measure(sums.sum(axis=0, keepdims=True))[0]), float(low), float(high), len(parts))


def _distance(totals: Floats, level: Level) -> Floats:
    if level == "nominal":
        return 1 - np.eye(totals.shape[1])
    # Ordinal: how many values lie between the two, half of their own counted.
    middle = np.cumsum(totals, axis=1) - totals / 2
    return np.asarray((middle[:, :, None] - middle[:, None, :]) ** 2)


def _ratio(above: Floats, below: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(above / np.where(np.abs(below) < 1e-15, np.nan, below))
