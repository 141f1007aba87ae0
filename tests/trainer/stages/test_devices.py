"""Every stage's forward and backward pass on a GPU that is not there (`tests/trainer/facade.py`)."""

import pytest
from care_trainer.pipeline import STAGES

from tests.trainer.forked import Forks

PROGRAM = "import runpy; runpy.run_module('tests.trainer.facade', run_name='__main__')"


@pytest.mark.timeout(300)
def test_every_stage_trains_on_one_device(forks: Forks) -> None:
    done = forks.run(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert {*STAGES} - {"prune"} == {*done.stdout.split()}, "a pruning trains nothing"


def test_a_loss_that_stays_behind_is_found(forks: Forks) -> None:
    """Stage `static` had this fault: its table of parts was on the CPU, its ids on the GPU."""
    done = forks.run(PROGRAM, "stays")
    assert done.returncode and "tensors on two devices" in done.stderr
