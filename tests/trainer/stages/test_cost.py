"""What `care-train init` says a run will cost, against the models and PyTorch's own counter."""

from pathlib import Path

import pytest
import torch
from care_trainer.cli import care_train
from care_trainer.config import Run, find_config, load_run
from care_trainer.config.presets import apply_preset
from care_trainer.models import towers
from care_trainer.stages.cost import load_shape, peak_bytes, stage_cost
from care_trainer.stages.match_compute import forward_operations, transformer_operations
from care_trainer.stages.step_memory import Encoder
from click.testing import CliRunner

from benchmarks.perf import training_memory
from care_qdrant.errors import InputError
from tests.trainer.bases import gte_mlm_base, qwen3_base
from tests.trainer.tiny_run import stage, tiny_run


def test_shapes_without_weights_count_what_the_models_have(
    base: Run, query_folder: Path, document_folder: Path
) -> None:
    for side, folder in (("query", query_folder), ("document", document_folder)):
        model, shape = towers.load(folder), load_shape(base, side)  # type: ignore[arg-type]
        transformer = towers.transformer_of(model).model
        assert transformer_operations(shape.model, 20) == forward_operations(model, 20)
        words = shape.model.config.vocab_size - transformer.config.vocab_size  # the tokenizer found fewer
        expected = sum(parameter.numel() for parameter in transformer.parameters())
        assert shape.parameters == expected + words * transformer.config.hidden_size


def test_a_published_base_is_described_by_its_configuration_alone(tmp_path: Path) -> None:
    query, document = gte_mlm_base(tmp_path / "gte"), qwen3_base(tmp_path / "qwen3", 2560)
    for file in [*query.glob("*.safetensors"), *document.glob("*.safetensors")]:
        file.unlink()
    run = load_run(find_config("care-0.3b-4b"), [f"query.base={query}", f"document.base={document}"])
    shape = load_shape(run, "document")
    assert shape.dtype_bytes == 2
    attention = 2 * (2560 + 64) + 2 * (2560 + 32)
    encoder = Encoder(shape.model.config, run.document, torch.bfloat16)
    trainable = sum(parameter.numel() for parameter in encoder.parameters() if parameter.requires_grad)
    assert trainable == 32 * (attention + 3 * (2560 + 64))
    assert load_shape(run, "query").model.config.model_type == "gte"
    with pytest.raises(InputError, match=r"base nobody/none: its config.json cannot be reached"):
        load_shape(load_run(find_config("care-0.3b-4b"), ["document.base=nobody/none"]), "document")


def test_stage_two_costs_more_with_negatives_and_a_frozen_side_less(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("align"), stage("joint", max_steps=None))
    shapes = {side: load_shape(run, side) for side in ("query", "document")}
    tokens = {"query": 10.0, "document": 20.0}

    def operations(*overrides: str) -> float:
        changed = tiny_run(tmp_path, stage("joint", max_steps=None), overrides=overrides)
        return stage_cost(changed, changed.stage[0], 1000, tokens, shapes).operations  # type: ignore[arg-type]

    whole = operations()
    query, document = (transformer_operations(shapes[side].model, tokens[side]) for side in ("query", "document"))
    assert whole == pytest.approx(1000 * 3 * (query + document))
    assert operations("stage.joint.hard_negatives=3") == pytest.approx(1000 * 3 * (query + 4 * document))
    assert operations("stage.joint.freeze_document=true") == pytest.approx(1000 * (3 * query + document))
    assert operations("stage.joint.cached=true") == pytest.approx(1000 * 4 * (query + document))
    assert apply_preset(run, "without-align").stage[0].kind == "joint"


def test_caching_and_checkpointing_lower_the_memory_and_not_the_weights(tmp_path: Path) -> None:
    def peak(*overrides: str) -> int:
        run = tiny_run(tmp_path, stage("joint", batch_size=64), overrides=overrides)
        return peak_bytes(run, run.stage[0], {side: load_shape(run, side) for side in ("query", "document")})  # type: ignore[arg-type]

    plain, cached = peak(), peak("stage.joint.cached=true")
    assert cached < plain and peak("stage.joint.gradient_checkpointing=true") < plain
    trained = sum(load_shape(tiny_run(tmp_path), side).parameters for side in ("query", "document"))  # type: ignore[arg-type]
    assert cached > 16 * (trained - 33 * 32), "weights, gradients and moments, of all but the unused pooler"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux")
@pytest.mark.parametrize("stage", ["retromae", "joint"])
def test_the_memory_of_a_step_is_as_predicted(tmp_path: Path, stage: str) -> None:
    shape = training_memory.Shape(
        query_width=256, query_vocabulary=120_000, document_width=640, document_vocabulary=60_000
    )
    training_memory.write_world(shape, tmp_path)
    peak = training_memory.measure(stage, shape, tmp_path)
    assert peak.ratio == pytest.approx(1, abs=0.15), peak


def test_init_prints_the_cost_and_writes_a_configuration_to_edit(tmp_path: Path) -> None:
    output = tmp_path / "my.toml"
    result = CliRunner().invoke(care_train, ["init", "tiny", "--output", str(output), "--processes", "2"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [item.kind for item in load_run(find_config("tiny")).stage]
    assert "GPU hours at 400 TFLOP/s" in lines[-1] and lines[-1].endswith("on 2")
    text = output.read_text(encoding="utf-8")
    assert text.startswith("# Expected cost") and text.endswith(find_config("tiny").read_text(encoding="utf-8"))
    assert load_run(output) == load_run(find_config("tiny"))
    assert CliRunner().invoke(care_train, ["init", "tiny", "--output", str(output)]).exit_code != 0, "it is kept"
