"""Whether activations are recomputed: counted on a few rows, for as many tokens as a mini-batch has."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from care_trainer.config.stages import Contrastive
from care_trainer.losses.embedding import Features
from care_trainer.models import towers
from care_trainer.training import recompute

STAGE = Contrastive(kind="supervised", mini_batch_tokens=96 * 32)


def _columns(rows: int) -> list[Features]:
    """Texts of 32 tokens each."""
    return [{"input_ids": torch.full((rows, 32), 7), "attention_mask": torch.ones(rows, 32, dtype=torch.long)}]


def test_what_is_counted_on_few_rows_is_what_many_hold(query_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "care_trainer")
    model = towers.load(query_folder).cpu().train()
    towers.make_trainable(model, side="query", lora=False)
    [column] = _columns(96)
    held = recompute._held(model, column, False)
    trained = 12 * sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    for part, needed in ((0.9, True), (1.1, False)):
        free = int((part * held + trained) / (1 - recompute.SPARE))
        assert recompute.needs_checkpoints(model, STAGE, _columns, 32, free) is needed
    rows = replace(STAGE, mini_batch_tokens=None, mini_batch_size=96)
    assert not recompute.needs_checkpoints(model, rows, _columns, 32, free)
    assert [
        next(word for word in ("recomputed", "kept, though") if word in record.getMessage())
        for record in caplog.records
        if "mini-batch" in record.getMessage()
    ] == ["recomputed", "kept, though", "kept, though"]


def test_counting_takes_no_random_number(query_folder: Path) -> None:
    model = towers.load(query_folder).cpu().train()
    torch.manual_seed(1)
    recompute.needs_checkpoints(model, STAGE, _columns, 32, 2**40)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
