"""Two processes see each other's candidates and end with the weights that one process with twice the batch has."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from care_trainer import chain
from care_trainer.config import Run
from safetensors.numpy import load_file

from tests.trainer.tiny_run import stage, tiny_run

STAGES = (
    stage("unsupervised", learn_temperature=True, max_steps=2, weight_decay=0.0),
    stage("align", max_steps=2),
    stage("joint", cached=True, max_steps=2, hard_negatives=1),
)


def _without_dropout(root: Path, batch_size: int) -> Run:
    stages = [{**values, "batch_size": batch_size} for values in STAGES]
    return tiny_run(root, *stages, overrides=["query.scratch.dropout=0.0"])


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    single = _without_dropout(tmp_path / "one", 16)
    chain.run_stages(single)
    double = _without_dropout(tmp_path / "two", 8)
    script = (
        "import sys; from pathlib import Path; from care_trainer import chain; from care_trainer.parse import load_run;"
        "run = load_run(Path(sys.argv[1]), ['query.scratch.dropout=0.0']); chain.run_stages(run)"
    )
    path = tmp_path / "two" / "train.py"
    path.write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, str(path), str(tmp_path / "two" / "run.toml")],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=500,
    )
    for name in ("unsupervised", "align", "joint"):
        ours = load_file(Path(double.output) / name / "query" / "model.safetensors")
        theirs = load_file(Path(single.output) / name / "query" / "model.safetensors")
        for key, value in theirs.items():
            np.testing.assert_allclose(ours[key], value, atol=2e-4, err_msg=f"{name}: {key}")
    temperatures = [chain.read_record(Path(run.output) / "unsupervised")["temperature"] for run in (single, double)]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-3)
