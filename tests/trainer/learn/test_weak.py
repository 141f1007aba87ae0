"""Which questions a query encoder answers worst, and a loss that is warned of."""

import numpy as np
import pytest
from care_trainer.learn.quality import loss_warning
from care_trainer.learn.weak import Example, weak_kinds, worst_examples

TEXTS = ["糖尿病人能吃西瓜吗", "高血压怎么办"]
CHINESE = ["糖尿病" * 5] * 90
NONE_RARE = np.zeros(90)


def names(questions: list[str], ranks: np.ndarray, rare: np.ndarray = NONE_RARE) -> list[str]:
    return [kind.name.split(" ")[0] for kind in weak_kinds(questions, ranks, rare, TEXTS)]


def test_the_kinds_that_do_clearly_worse_are_named_worst_first() -> None:
    questions = [*CHINESE[:60], *["diabetes and melons"] * 30]
    ranks = np.where(np.arange(90) < 60, 1, 11)
    [script] = [kind for kind in weak_kinds(questions, ranks, NONE_RARE, TEXTS) if "script" in kind.name]
    assert (script.name, script.questions) == ("in another script than CJK", 30)
    assert (script.recall_at_10, script.others) == (0.0, 1.0)
    long = ["糖尿病" * (5 + number) for number in range(90)]
    assert names(long, np.where(np.arange(90) < 60, 1, 11)) == ["long"]
    assert names(long, np.where(np.arange(90) < 30, 11, 1)) == ["short"]
    third = np.arange(90) % 3 == 0
    assert names(CHINESE, np.where(third, 11, 1), np.where(third, 0.3, 0.1)) == ["of"]


def test_what_may_be_chance_or_is_a_handful_is_not_named() -> None:
    ranks = np.where(np.arange(90) % 2, 1, 11)
    assert names([*CHINESE[:60], *["diabetes"] * 30], ranks) == []
    assert names(CHINESE, np.ones(90)) == []
    few = [*CHINESE[:80], *["diabetes and melons"] * 10]
    assert names(few, np.where(np.arange(90) < 80, 1, 11)) == []


def test_examples_are_the_lowest_ranks_beyond_the_first_ten() -> None:
    found = worst_examples(["a", "b", "c", "d"], np.array([10, 11, 500, 1]))
    assert found == [Example("c", 500), Example("b", 11)]
    assert len(worst_examples(["a"] * 9, np.arange(20, 29))) == 5


@pytest.mark.parametrize(("kept", "is_warned"), [(None, False), (0.9, False), (0.89, True)])
def test_less_than_nine_tenths_of_the_old_model_is_warned_of(kept: float | None, is_warned: bool) -> None:
    assert (loss_warning(kept) is not None) == is_warned
