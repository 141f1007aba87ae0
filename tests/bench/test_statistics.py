from itertools import product

import numpy as np
import pytest
from care_benchmarks.statistics import (
    Interval,
    compare_with_base,
    holm,
    mean_interval,
    pearson_interval,
    randomisation_p_value,
)
from scipy import stats


def test_holm_on_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_small_samples_are_enumerated_exactly() -> None:
    base, other = np.zeros(8), np.array([0.5, 0.1, 0.3, -0.2, 0.4, 0.2, 0.6, 0.1])
    difference = other - base
    means = [np.mean(difference * signs) for signs in product((-1, 1), repeat=8)]
    expected = np.mean(np.abs(means) >= abs(difference.mean()) - 1e-12)
    assert randomisation_p_value(base, other) == pytest.approx(expected)


def test_equal_systems_are_not_different() -> None:
    scores = np.random.default_rng(0).random(50)
    assert randomisation_p_value(scores, scores) == 1.0


def test_random_sign_flips_agree_with_the_t_test_on_many_queries() -> None:
    rng = np.random.default_rng(1)
    base = rng.random(400)
    other = base + rng.normal(0.012, 0.1, size=400)
    assert randomisation_p_value(base, other) == pytest.approx(stats.ttest_rel(base, other).pvalue, abs=0.01)


def test_false_alarms_come_as_often_as_the_level_says() -> None:
    """Under the null the p-value is uniform: at level 0.2, 200 experiments give 40 ± 17 (three standard errors)."""
    rng = np.random.default_rng(2)
    alarms = sum(randomisation_p_value(rng.normal(size=10), rng.normal(size=10)) <= 0.2 for _ in range(200))
    assert 23 <= alarms <= 57


def test_interval_of_a_mean_agrees_with_the_normal_approximation() -> None:
    values = np.random.default_rng(3).random(1000)
    half = 1.96 * values.std() / np.sqrt(1000)
    interval = mean_interval(values)
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.002)


def test_interval_of_a_correlation_agrees_with_fisher() -> None:
    rng = np.random.default_rng(4)
    first = rng.normal(size=800)
    second = 0.6 * first + 0.8 * rng.normal(size=800)
    fisher = stats.pearsonr(first, second).confidence_interval(0.95)
    interval = pearson_interval(first.tolist(), second.tolist())
    assert (interval.low, interval.high) == pytest.approx((fisher.low, fisher.high), abs=0.01)


def test_degenerate_samples_have_an_interval() -> None:
    assert mean_interval([0.5, 0.5, 0.5]) == Interval(0.5, 0.5)
    assert mean_interval([0.5]) == Interval(0.5, 0.5)
    assert pearson_interval([0, 1], [0.3, 0.3]) == Interval(0.0, 0.0)


def test_comparisons_are_corrected_together_and_reproducible() -> None:
    rng = np.random.default_rng(5)
    base = rng.random(60)
    scores = {"base": base, "better": base + 0.1, "same": base + rng.normal(0, 0.1, 60), "worse": base - 0.05}
    found = compare_with_base("base", scores)
    assert [comparison.other for comparison in found] == ["better", "same", "worse"]
    assert found[0].difference == pytest.approx(0.1)
    assert found[0].interval.low == pytest.approx(0.1)
    assert [c.adjusted_p_value for c in found] == holm([c.p_value for c in found])
    assert found == compare_with_base("base", scores)
