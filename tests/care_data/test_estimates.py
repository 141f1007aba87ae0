"""Agreement of raters: values of the package, intervals that hold the truth, questions that are drawn whole."""

import krippendorff
import numpy as np
import pytest
from care_data.estimates import krippendorff_alpha, raw_agreement


def random_votes(seed: int, raters: int, categories: int, missing: float) -> np.ndarray:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, categories, size=(200, 1))
    votes = np.where(draw.random((200, raters)) < 0.6, truth, draw.integers(0, categories, size=(200, raters)))
    return np.where(draw.random(votes.shape) < missing, -1, votes).astype(np.int64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("level", ["nominal", "ordinal"])
def test_alpha_equals_krippendorff(seed: int, level: str) -> None:
    votes = random_votes(seed, raters=2 + seed % 4, categories=2 + seed % 4, missing=0.4)
    data = np.where(votes < 0, np.nan, votes).T
    domain = list(range(2 + seed % 4))
    expected = krippendorff.alpha(data, value_domain=domain, level_of_measurement=level)
    assert krippendorff_alpha(votes, 2 + seed % 4, level).value == pytest.approx(expected, abs=1e-12)  # type: ignore[arg-type]


def test_raw_agreement_is_the_share_of_equal_votes() -> None:
    votes = random_votes(1, raters=2, categories=3, missing=0.3)
    whole = votes[(votes >= 0).all(axis=1)]
    estimate = raw_agreement(votes, 3)
    assert estimate.value == pytest.approx((whole[:, 0] == whole[:, 1]).mean(), abs=1e-12)
    assert estimate.items == len(whole)


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(50):
        draw = np.random.default_rng(seed)
        truth = draw.integers(0, 2, size=(300, 1))
        votes = np.where(draw.random((300, 2)) < 0.2, 1 - truth, truth).astype(np.int64)
        found = raw_agreement(votes, 2)
        held += found.low <= 0.8**2 + 0.2**2 <= found.high
    assert 43 <= held <= 50


def test_questions_are_resampled_whole() -> None:
    one = random_votes(0, raters=2, categories=2, missing=0.0)
    copies = np.repeat(one, 5, axis=0)
    by_question = raw_agreement(copies, 2, [row // 5 for row in range(len(copies))])
    single = raw_agreement(one, 2)
    assert by_question.high - by_question.low == pytest.approx(single.high - single.low, rel=0.15)
    by_pair = raw_agreement(copies, 2)
    assert by_pair.high - by_pair.low < 0.6 * (single.high - single.low)


def test_no_two_votes_give_no_number() -> None:
    votes = np.array([[0, -1], [-1, 1]])
    assert all(np.isnan(measure(votes, 2).value) for measure in (raw_agreement, krippendorff_alpha))
