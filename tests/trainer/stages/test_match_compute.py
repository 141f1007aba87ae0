"""The control without Stage I costs what Stage I and II cost together: measured by counting operations as they run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from care_trainer import pipeline
from care_trainer.config import Run
from care_trainer.config.presets import apply_preset
from care_trainer.models import towers
from care_trainer.stages.match_compute import forward_operations
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from tests.trainer.tiny_run import stage, tiny_run


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


ATTENTION_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""PyTorch's counter knows attention on GPUs alone."""


def _operations(run: Run) -> int:
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_ON_CPU) as counter:
        pipeline.run_stages(run)
    return counter.get_total_flops()


def _recipe(root: Path, **joint: object) -> Run:
    steps = {"max_steps": None, "batch_size": 16, "mini_batch_size": 16}
    stages = (stage("align", epochs=6, **steps), stage("joint", **{"epochs": 2, "hard_negatives": 1, **steps, **joint}))
    return tiny_run(root, *stages, overrides=["data.texts.max_rows=96"])


@pytest.mark.parametrize("cached", [False, True])
def test_equal_compute_spends_what_both_stages_spend_but_for_padding(tmp_path: Path, cached: bool) -> None:
    run = _recipe(tmp_path, cached=cached)
    whole, control = _operations(run), _operations(apply_preset(run, "equal-compute"))
    shorter = _operations(apply_preset(run, "without-align"))
    assert shorter < 0.9 * whole, "Stage I costs something"
    # Stage I's batches mix short and long texts: padding, which is not counted, is a tenth of such tiny ones.
    assert control == pytest.approx(whole, rel=0.15)


def test_equal_texts_sees_as_many_texts_as_both_stages(tmp_path: Path) -> None:
    run = _recipe(tmp_path)
    align, joint = run.stage
    (record,) = pipeline.run_stages(apply_preset(run, "equal-texts"))
    texts, pairs = 96 * align.epochs, 48 * joint.epochs
    assert record["metrics"]["epoch"] * 48 * 3 == pytest.approx(texts + pairs * 3, rel=0.05)


def test_a_forward_pass_is_counted_as_pytorch_counts_it(query_folder: Path, document_folder: Path) -> None:
    for folder in (query_folder, document_folder):
        model = towers.load(folder)
        features = model.preprocess(["高血压吃什么好？早期多无明显不适"])
        with FlopCounterMode(display=False, custom_mapping=ATTENTION_ON_CPU) as counter:
            model[0](features)
        tokens = features["input_ids"].shape[1]
        assert forward_operations(model, tokens) == pytest.approx(counter.get_total_flops(), rel=0.03)
