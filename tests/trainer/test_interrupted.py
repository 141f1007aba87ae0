"""Runs that are killed, or meet a full disk, in processes of their own; then resumed, to the last bit."""

import hashlib
import random
import subprocess
from pathlib import Path

import pytest
import torch
from care_trainer import recipe
from care_trainer.cli import care_train
from care_trainer.start import RESULT, prepare
from click.testing import CliRunner

from care_qdrant.errors import CareError
from tests.forks import FORKS
from tests.trainer.tiny_run import environment, pairs, stage, tiny_run, write_jsonl

STAGES = (
    stage("unsupervised", max_steps=8, learn_temperature=True, cached=True),
    stage("align", max_steps=8),
    stage("joint", max_steps=8, hard_negatives=1),
)
CHECKPOINTS = "checkpoint_minutes=0"

KILLED_AGAIN_AND_AGAIN = """
import os, signal, sys, threading
from pathlib import Path
from care_trainer import recipe
from care_trainer.cli import care_train
from care_trainer.config import load_run

kills = 0
for delay in map(float, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
        {command}
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
print(kills)
"""


RUN = f"recipe.run_stages(load_run(Path('run.toml'), ['{CHECKPOINTS}']))"
START = ["start", "faq.jsonl", "--output", "faq", "--base", "scratch"]


def _weights(output: Path) -> dict[str, str]:
    files = sorted(output.rglob("*.safetensors"))
    return {
        path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "checkpoints" not in path.parts
    }


def _python(program: str, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [FORKS.python, "-c", program, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=500, cwd=folder)


def _kill_again_and_again(command: str, folder: Path, seed: int) -> None:
    """Run a line of Python in a folder, killed at random moments, until it ends."""
    draw = random.Random(seed)
    delays = [draw.uniform(0.05, 0.5 * (1 + attempt)) for attempt in range(25)]  # longer ones: any machine finishes
    program = KILLED_AGAIN_AND_AGAIN.format(command=command)
    result = _python(program, *map(str, [*delays, 1e6]), folder=folder)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.splitlines()[-1]) >= 1


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    run = tiny_run(tmp_path_factory.mktemp("whole"), *STAGES)
    recipe.run_stages(run)
    return _weights(Path(run.output))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_and_resumed_is_uninterrupted(
    uninterrupted: dict[str, str], tmp_path: Path, seed: int
) -> None:
    run = tiny_run(tmp_path, *STAGES, overrides=[CHECKPOINTS])
    _kill_again_and_again(RUN, tmp_path, seed)
    assert _weights(Path(run.output)) == uninterrupted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_start_that_is_killed_again_and_again_ends_with_the_model_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        config = prepare(write_jsonl(Path("faq.jsonl"), pairs()), Path("faq"), base="scratch").config
        config.write_text(f"{CHECKPOINTS.replace('=', ' = ')}\n" + config.read_text("utf-8"), encoding="utf-8")
    _kill_again_and_again(f"care_train({START}, standalone_mode=False)", tmp_path / "killed", seed=0)
    monkeypatch.chdir(tmp_path / "whole")
    CliRunner().invoke(care_train, START, catch_exceptions=False)
    results = [(tmp_path / name / "faq" / RESULT).read_text("utf-8") for name in ("whole", "killed")]
    weights = [_weights(tmp_path / name / "faq/run") for name in ("whole", "killed")]
    assert {"joint/query/model.safetensors", "joint/document/model.safetensors"} <= weights[0].keys()
    assert weights[0] == weights[1]
    assert results[0] == results[1]


WITH_A_SMALL_DISK = """
import resource, sys
from care_trainer.cli import care_train
from care_qdrant.console import run

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
sys.argv = ["care-train", *sys.argv[1:]]
run(care_train)
"""


@pytest.mark.parametrize(
    ("checkpoints", "problem"),
    [
        ("checkpoint_minutes=60", r"joint/query: cannot be saved; the stages before this one are whole"),
        (CHECKPOINTS, r"out/joint: a checkpoint could not be written; the last complete one is none"),
    ],
)
def test_a_disk_that_is_full_is_one_line_and_the_run_goes_on_when_there_is_room(
    uninterrupted: dict[str, str], tmp_path: Path, checkpoints: str, problem: str
) -> None:
    run = tiny_run(tmp_path, *STAGES)
    recipe.run_stages(run, only="unsupervised")
    recipe.run_stages(run, only="align")
    before = _weights(Path(run.output))
    command = ["run", str(tmp_path / "run.toml"), "--stage", "joint", "--set", checkpoints]
    full = _python(WITH_A_SMALL_DISK, *command)
    assert full.returncode == 9, full.stderr
    last = full.stderr.strip().splitlines()[-1]
    assert problem in last and last.endswith("Free some space, then run the same command to resume.")
    assert "Traceback" not in full.stderr
    assert _weights(Path(run.output)) == before
    assert not (Path(run.output) / "joint" / "stage.json").exists()
    again = CliRunner().invoke(care_train, command, catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert _weights(Path(run.output)) == uninterrupted


def test_a_bad_batch_can_be_looked_at(tmp_path: Path) -> None:
    hot = stage("supervised", learning_rate=1e30, max_grad_norm=1e30)
    tiny_run(tmp_path, hot)
    with pytest.raises(CareError, match="supervised: the loss is nan in step") as ended:
        CliRunner().invoke(care_train, ["run", str(tmp_path / "run.toml")], catch_exceptions=False)
    assert ended.value.exit_code == 9
    batch = torch.load(tmp_path / "out/supervised/bad-batch.pt")
    assert {key: value.shape[0] for key, value in batch.items() if key.endswith("input_ids")} == {
        "query_input_ids": 8,
        "positive_input_ids": 8,
    }
