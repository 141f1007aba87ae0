"""Memory of an export: one float32 copy of a side and the file that it reads; nothing that training left."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from care_trainer import recipe
from sentence_transformers import SentenceTransformer

from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import verify_checkpoint
from tests.trainer.bases import qwen3_base
from tests.trainer.tiny_run import pairs, stage, tiny_run

EXPORT = """
import sys
from pathlib import Path
import torch, transformers, sentence_transformers, peft
from care_trainer import recipe
from care_trainer.config import load_run
from care_trainer.export.checkpoint import export
from care_trainer.models import towers

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

run = load_run(Path(sys.argv[1]), sys.argv[2:])
towers.load(recipe.newest(run, "query")).encode("a")
before = memory("VmHWM")
export(run, "test")
print(memory("VmHWM") - before)
"""


def test_training_leaves_no_encoder_behind(tmp_path: Path) -> None:
    def encoders() -> set[int]:
        return {id(found) for found in gc.get_objects() if type(found) is SentenceTransformer}

    gc.collect()
    before = encoders()
    recipe.run_stages(tiny_run(tmp_path, stage("supervised"), stage("joint", hard_negatives=1)))
    assert encoders() <= before


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux")
def test_an_export_holds_one_copy_of_a_side_and_runs_again_alone(tmp_path: Path) -> None:
    base = qwen3_base(tmp_path / "qwen3", 1024, layers=10, intermediate=4096)
    copy = 4 * sum(entry.stat().st_size for entry in base.glob("*.safetensors")) // 2
    assert copy > 500e6
    document = f'document={{ base = "{base}", pooling = "lasttoken", lora = {{ rank = 8, alpha = 16 }} }}'
    settings = stage("document", max_steps=1, batch_size=2, learning_rate=0.01)
    run = tiny_run(tmp_path, settings, overrides=[document])
    recipe.run_stages(run)
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "run.toml"), document]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # a freed tensor goes back to the system
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    # The file that is read is mapped: half a copy in bfloat16, which the system may drop.
    assert int(done.stdout.split()[-1]) < 1.65 * copy
    folder = Path(run.output) / run.name
    assert verify_checkpoint(folder).dim == 32
    exported = CareModel.load(str(folder)).encode_document([row["positive"] for row in pairs()[:4]])
    assert exported.shape == (4, 32)
