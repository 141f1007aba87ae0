"""A rehearsal of a run: every stage stopped, resumed, exported and loaded, and the whole forecast."""

import json
from pathlib import Path

import pytest
from care_trainer.cli import care_train
from care_trainer.config import Run
from care_trainer.rehearse import Part, rehearse
from click.testing import CliRunner

from care_qdrant.errors import InputError
from tests.trainer.bases import gte_mlm_base, qwen3_base
from tests.trainer.tiny_run import stage, tiny_run

LONG = {"max_steps": None, "epochs": 4, "batch_size": 4}


def _published(root: Path, layers: int) -> Run:
    """Return a run over bases of which only configurations and tokenizers are there."""
    query, document = gte_mlm_base(root / "gte"), qwen3_base(root / "qwen3", 768, layers, 256)
    for file in [*query.glob("*.safetensors*"), *document.glob("*.safetensors*")]:
        file.unlink()
    config = json.loads((query / "config.json").read_text())
    (query / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    towers = [
        f'query={{ base = "{query}", max_tokens = 32 }}',
        f'document={{ base = "{document}", pooling = "lasttoken", max_tokens = 32, lora = {{ rank = 4, alpha = 8 }} }}',
        "dim=768",
    ]
    stages = [stage("align", **LONG), stage("joint", **LONG)]
    return tiny_run(root, *stages, overrides=towers)


@pytest.mark.slow
@pytest.mark.timeout(600)  # three small runs, each with its export
def test_a_run_is_rehearsed_with_fewer_layers_and_without_weights(tmp_path: Path) -> None:
    found = rehearse(_published(tmp_path, 8), layers=2, rows=2)
    assert found.layers == {"query": 2, "document": 2} and found.of == {"query": 8, "document": 8}
    assert list(found.parts) == ["align", "joint", "export"]
    for part in found.parts.values():
        assert part["forecast"]["peak_gib"] >= part["measured"]["peak_gib"] > 0
    # 48 pairs, 4 epochs: 96 steps of two rows.
    joint = found.parts["joint"]
    assert joint["forecast"]["hours"] * 3600 >= 96 * joint["measured"]["seconds"] * 0.9 - 4
    assert found.whole["disk_gib"] > found.parts["export"]["forecast"]["disk_gib"] > 0


def test_the_command_prints_the_forecast_and_leaves_nothing(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("supervised", **LONG), stage("joint", **LONG))
    result = CliRunner().invoke(care_train, ["rehearse", str(tmp_path / "run.toml"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["whole"]["peak_gib"] > 0
    assert not list(Path(run.output).parent.glob("out*"))


def test_what_an_earlier_run_left_in_memory_hides_no_layer() -> None:
    two = Part(peak_bytes=1000, held_bytes=300, seconds=4.0, disk_bytes=50)
    less = {
        "query": Part(peak_bytes=1090, held_bytes=400, seconds=3.5, disk_bytes=45),  # higher than with the layer
        "document": Part(peak_bytes=1020, held_bytes=420, seconds=3.0, disk_bytes=30),
    }
    found = two.deeper({"query": 10, "document": 34}, less)
    assert found.peak_bytes == 1000 + 10 * 10 + 34 * 100
    assert found.seconds == 4.0 + 10 * 0.5 + 34 * 1.0
    assert found.disk_bytes == 50 + 10 * 5 + 34 * 20


def test_one_layer_is_too_few_to_measure_another(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 2"):
        rehearse(tiny_run(tmp_path, stage("joint")), layers=1)
