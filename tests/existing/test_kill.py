"""A trial of the committed harness; ``care-bench deployment kill-attach`` does many."""

import os
from pathlib import Path

import pytest
from care_benchmarks.deployment.kill_attach import TargetKind, run_trials
from care_benchmarks.ingestion.processes import standin_server


@pytest.mark.parametrize("kind", ["embedded", "server"])
def test_one_more_run_makes_a_killed_attach_and_detach_right(kind: TargetKind, tmp_path: Path) -> None:
    with standin_server() as url:
        trials = list(run_trials(kind, 1, 100, tmp_path, url, seed=os.getpid()))
    assert len(trials) == 1
    assert [trial for trial in trials if not trial.is_good] == []
