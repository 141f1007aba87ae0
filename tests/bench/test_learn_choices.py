"""What a figure on held-out documents says of real questions, on collections that were left out."""

import numpy as np
import pytest

from benchmarks.experiments.learn_choices import prediction


def rows(slope: float) -> list[dict[str, object]]:
    generator = np.random.default_rng(0)
    figures = [{"recall_at_10": float(recall), "mrr": float(generator.random())} for recall in generator.random(12)]
    return [
        {"variant": "base", "source": f"s{n // 2}", "held_out": found, "dense": 0.1 + slope * found["recall_at_10"]}
        for n, found in enumerate(figures)
    ]


def test_a_figure_on_a_line_predicts_and_one_at_random_does_no_better_than_the_mean() -> None:
    found = prediction(rows(0.5))
    line, mean, collections = found["recall_at_10"]
    assert line == pytest.approx(0, abs=1e-4) and mean > 0.05 and collections == 6
    assert found["mrr"][0] > mean / 2


def test_two_collections_predict_nothing() -> None:
    assert prediction(rows(0.5)[:4]) == {}
