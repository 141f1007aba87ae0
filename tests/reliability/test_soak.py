"""A short soak; ``python -m tests.reliability soak`` sends a hundred thousand queries."""

from pathlib import Path

from tests.reliability.soak import soak_trial


def test_no_answer_is_lost_or_swapped(pair_folder: Path) -> None:
    trial = soak_trial(pair_folder, queries=300, seed=0)
    assert trial.is_good, trial
    assert trial.observed["answered"] > 200 and trial.observed["refused"] > 0
