"""Agreement of raters with missing votes: the share of equal votes, and Krippendorff's alpha by its own package."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import krippendorff
import numpy as np
import numpy.typing as npt
from care_benchmarks.statistics import SEED

Floats = npt.NDArray[np.float64]
Votes = npt.NDArray[np.int64]
"""Table ``(items, raters)`` of categories from 0; -1 for a missing vote."""
Level = Literal["nominal", "ordinal"]

RESAMPLES = 1_000


class Estimate(NamedTuple):
    """A measure with its 95 % bootstrap interval over questions; NaN where too few vote, or one category is alone."""

    value: float
    low: float
    high: float
    items: int
    """Number of items with at least two votes."""

    def plain(self) -> dict[str, Any]:
        """Return JSON values; None for what is not defined."""
        return {name: None if np.isnan(value) else value for name, value in self._asdict().items()}


def krippendorff_alpha(
    votes: Votes, categories: int, level: Level = "nominal", clusters: Sequence[object] | None = None
) -> Estimate:
    """Return Krippendorff's alpha of all raters: 1 is agreement, 0 is chance.

    Args:
        votes: One row an item.
        categories: Number of categories.
        level: Whether categories are ordered.
        clusters: Question of each item, which the bootstrap draws whole; None draws single items.
    """

    def alpha(counts: Floats) -> float:
        if np.count_nonzero(counts.sum(axis=0)) < 2:  # with one category alone, chance agrees as well
            return float("nan")
        domain = list(range(categories))
        return float(krippendorff.alpha(value_counts=counts, value_domain=domain, level_of_measurement=level))

    return _estimate(votes, categories, alpha, clusters)


def raw_agreement(votes: Votes, categories: int, clusters: Sequence[object] | None = None) -> Estimate:
    """Return the share of items on which two raters agree, from 0 to 1."""
    return _estimate(votes, categories, lambda counts: float((counts.max(axis=1) == 2).mean()), clusters)


def _estimate(
    votes: Votes, categories: int, measure: Callable[[Floats], float], clusters: Sequence[object] | None
) -> Estimate:
    """Return a measure of how often each category was chosen, of the items with at least two votes."""
    counts = np.stack([(votes == category).sum(axis=1) for category in range(categories)], axis=1).astype(np.float64)
    rated = counts.sum(axis=1) >= 2
    counts = counts[rated]
    if len(counts) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    numbers: dict[object, int] = {}
    own = np.array([numbers.setdefault(name, len(numbers)) for name in clusters or range(len(votes))])[rated]
    members = [np.flatnonzero(own == number) for number in np.unique(own)]
    draw = np.random.default_rng(SEED)
    samples = draw.integers(len(members), size=(RESAMPLES, len(members)))
    resampled = np.array([measure(counts[np.concatenate([members[at] for at in sample])]) for sample in samples])
    resampled = resampled[np.isfinite(resampled)]
    low, high = np.percentile(resampled, [2.5, 97.5]) if len(resampled) else (np.nan, np.nan)
    return Estimate(measure(counts), float(low), float(high), len(counts))
