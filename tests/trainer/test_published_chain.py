"""The whole recipe on bfloat16 stand-ins in the published layout: killed in every stage, resumed to the same bytes."""

import hashlib
import json
from pathlib import Path

import pytest
from care_trainer.config import find_config, load_run

from tests.trainer.bases import gte_mlm_base, qwen3_base, write_paper_data
from tests.trainer.tiny_run import run_ranks

NAME, HIDDEN = "care-0.3b-4b", 2560
"""The chain of 8B differs in one width; `config/test_shipped.py` trains and exports it in one process."""
ATTEMPT = """
import json, os, sys
from care_trainer import recipe
from care_trainer.config import find_config, load_run

name, overrides, kill_in = sys.argv[1:]

def report(what, step, steps, loss, tokens):
    if what == kill_in and step == 2:
        os._exit(3)

recipe.run_stages(load_run(find_config(name), json.loads(overrides)), report=report)
"""


def _overrides(root: Path, output: str) -> list[str]:
    own = [
        f"stage.{stage.kind}.{key}"
        for stage in load_run(find_config(NAME)).stage
        for key in ("max_steps=3", "global_batch_size=4")
    ]
    places = [f"output={root / output}", f"data_root={root / 'data'}", f"query.base={root / 'gte'}"]
    return [*places, f"document.base={root / 'qwen3'}", "checkpoint_minutes=0", *own]


def _train(root: Path, output: str, kill_in: str = "") -> list[int]:
    """Train on two processes, killed in the second step of a stage; return how they ended."""
    arguments = [NAME, json.dumps(_overrides(root, output)), kill_in]
    return [done.returncode for done in run_ranks(ATTEMPT, *arguments)]


def _bytes(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*.safetensors")) if "checkpoints" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_in_every_stage_and_resumed_is_uninterrupted(tmp_path: Path) -> None:
    write_paper_data(tmp_path / "data")
    gte_mlm_base(tmp_path / "gte")
    assert len(list(qwen3_base(tmp_path / "qwen3", HIDDEN).glob("*.safetensors"))) > 1, "in several files"
    stages = [stage.kind for stage in load_run(find_config(NAME)).stage]
    assert _train(tmp_path, "whole") == [0, 0]
    for stage in stages:
        assert _train(tmp_path, "killed", stage) == [3, 3], stage
        folder = tmp_path / "killed" / stage
        assert (folder / "checkpoints/checkpoint-1/complete").exists(), f"{stage}: one step is kept"
        assert not (folder / "stage.json").exists(), f"{stage}: is unfinished"
    assert _train(tmp_path, "killed") == [0, 0]
    whole, killed = _bytes(tmp_path / "whole"), _bytes(tmp_path / "killed")
    assert {path.split("/")[0] for path in whole} == {"base", *stages}
    assert killed == whole
