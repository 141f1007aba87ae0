"""Every stage's forward and backward pass on a GPU that is not there (`tests/trainer/facade.py`)."""

import subprocess

import pytest
from care_trainer.recipe import STAGES

from tests.forks import FORKS

PROGRAM = "import runpy; runpy.run_module('tests.trainer.facade', run_name='__main__')"


def _on_gpu(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [FORKS.python, "-c", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(300)
def test_every_stage_trains_on_one_device() -> None:
    done = _on_gpu()
    assert done.returncode == 0, done.stderr
    assert {*STAGES} - {"prune"} == {*done.stdout.split()}, "a pruning trains nothing"


def test_a_loss_that_stays_behind_is_found() -> None:
    """Stage `static` had this fault: its table of parts was on the CPU, its ids on the GPU."""
    done = _on_gpu("stays")
    assert done.returncode and "tensors on two devices" in done.stderr
