"""Trials of the committed harnesses; ``care-bench deployment`` does many."""

import os
from pathlib import Path

import pytest
from care_benchmarks.deployment import crowd
from care_benchmarks.deployment.kill_attach import TargetKind, run_trials
from care_benchmarks.ingestion.processes import standin_server


@pytest.mark.parametrize("kind", ["embedded", "server"])
def test_one_more_run_makes_a_killed_attach_and_detach_right(kind: TargetKind, tmp_path: Path) -> None:
    with standin_server() as url:
        trials = list(run_trials(kind, 1, 100, tmp_path, url, seed=os.getpid()))
    assert sum(trial.attach_was_killed for trial in trials) == 1
    assert [trial for trial in trials if not trial.is_good] == []


def test_nothing_of_others_who_write_meanwhile_is_lost_or_comes_back() -> None:
    with standin_server() as url:
        trials = list(crowd.run_trials(1, 60, url, seed=os.getpid()))
    assert sum(trial.attach_was_killed for trial in trials) == 1
    assert sum(trial.added + trial.edited + trial.replaced + trial.deleted for trial in trials) > 0
    assert [trial for trial in trials if not trial.is_good] == []
