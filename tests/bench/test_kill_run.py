"""Runs that are killed, in processes of their own, and finished by the same command."""

import subprocess
import sys
from pathlib import Path

import pytest
from care_benchmarks.kill_run import SAME, Trial, run_trials
from care_benchmarks.results import Result, load_result

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)


def care_bench(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "ignore", "-m", "care_benchmarks.cli", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def finished(*arguments: object) -> None:
    with care_bench(*arguments) as process:
        problem = process.communicate()[1]
    assert process.returncode == 0, problem


def scores(result: Result) -> dict[str, float]:
    return {f"{system.name}/{score.task}": score.value for system in result.systems for score in system.scores}


def test_what_a_killed_run_has_stored_is_not_encoded_again(
    task_directory: Path, pair_folder: Path, tmp_path: Path
) -> None:
    run = ["run", task_directory, "--model", pair_folder, "--control", "query", "--no-speed", "--output"]
    with care_bench(*run, tmp_path / "killed") as process:
        # The log names a system when its turn comes: now the documents of the first one are stored.
        assert process.stderr and any(line.startswith("tiny-pair, query encoder twice: ") for line in process.stderr)
        process.kill()
    assert process.returncode == -9
    assert not (tmp_path / "killed/result.json").exists()
    for folder in ("killed", "undisturbed"):
        finished(*run, tmp_path / folder)
    again, whole = (load_result(tmp_path / folder) for folder in ("killed", "undisturbed"))
    assert [indexing.encoded for indexing in again.systems[0].indexing] == [0, 0]
    assert [indexing.encoded for indexing in whole.systems[0].indexing] == [5, 5]
    assert scores(again) == pytest.approx(scores(whole), abs=SAME)


def test_trials_at_random_moments(task_directory: Path, pair_folder: Path, tmp_path: Path) -> None:
    arguments = [str(task_directory), "--model", str(pair_folder), "--no-speed"]
    trials = list(run_trials(arguments, 2, tmp_path, seed=0))
    assert len(trials) == 2
    assert all(trial.is_good for trial in trials), trials


@pytest.mark.parametrize(("again", "missing", "difference"), [(1, 0, 0.0), (0, 1, 0.0), (0, 0, 1e-3)])
def test_a_trial_with_a_fault_is_not_good(again: int, missing: int, difference: float) -> None:
    assert not Trial(1.0, True, 5, again, missing, difference).is_good
