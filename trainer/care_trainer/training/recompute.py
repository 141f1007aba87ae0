"""The decision to recompute activations in the backward pass: with gradient caching only where memory is short.

Caching runs each mini-batch forward, forward again, and back; with checkpoints there is a third pass forward. What one
mini-batch would hold without them is counted on a few rows.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from care_trainer.config import Stage
from care_trainer.losses.embedding import Features

logger = logging.getLogger(__name__)

FEW, MORE = 2, 6
"""Rows that are counted: what grows with the tokens is the difference."""
SPARE = 0.2
"""Part of the free memory that stays free."""
_TRAINED_BYTES = 12
"""Memory of a trained parameter besides its weight: its gradient, and Adam's two moments."""


def needs_checkpoints(
    model: nn.Module, stage: Stage, columns: Callable[[int], Sequence[Features]], longest: int, free_bytes: int
) -> bool:
    """Return whether the activations of one mini-batch do not fit into the memory that is left."""
    tokens = stage.mini_batch_tokens or stage.mini_batch_size * longest
    largest = 0.0
    for few, more in zip(columns(FEW), columns(MORE), strict=True):
        bytes_of = [_held(model, column, stage.bf16) for column in (few, more)]
        counts = [column["attention_mask"].numel() for column in (few, more)]
        slope = (bytes_of[1] - bytes_of[0]) / max(1, counts[1] - counts[0])
        largest = max(largest, bytes_of[0] + slope * (tokens - counts[0]))
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    left = (1 - SPARE) * free_bytes - _TRAINED_BYTES * trained
    logger.info(
        "activations of a mini-batch of %s tokens: %.1f GiB, of %.1f GiB that are left: %s",
        f"{tokens:,}",
        largest / 2**30,
        left / 2**30,
        "recomputed" if largest > left else "kept, though gradient_checkpointing is set: one pass less",
    )
    return largest > left


def _held(model: nn.Module, column: Features, bf16: bool) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, besides the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    held: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = column["input_ids"].device
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autocast(device.type, torch.bfloat16, enabled=bf16),
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
    ):
        kept = model(dict(column))
    del kept
    return sum(held.values())
