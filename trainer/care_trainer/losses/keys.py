"""Hashes of texts, by which a loss finds equal texts in a batch: int64 that wraps around, no strings."""

from typing import Any

import torch
from torch import Tensor

Features = dict[str, Any]
"""One column of a batch as the encoder reads it."""


def is_flat(column: Features) -> bool:
    """Return whether a column is a static encoder's: token ids without padding, and the offset of each text."""
    return "offsets" in column


def text_keys(column: Features) -> Tensor:
    """Hash the token ids of each text.

    Args:
        column: Padded or flat; padding does not change a key.

    Returns:
        Keys, (rows,) int64; equal texts have equal keys.
    """
    ids = column["input_ids"]
    if not is_flat(column):
        mask = column["attention_mask"].long()
        keys: Tensor = (hash_tokens(ids, mask.cumsum(dim=1)) * mask).sum(dim=1)
        return keys
    offsets = column["offsets"]
    positions = torch.arange(len(ids), device=ids.device)
    rows = torch.bucketize(positions, offsets, right=True) - 1
    hashes = hash_tokens(ids, positions - offsets[rows] + 1)
    return torch.zeros(len(offsets), dtype=torch.long, device=ids.device).index_add(0, rows, hashes)


def vector_keys(vectors: Tensor) -> Tensor:
    """Hash the bits of stored vectors: one encoder gives equal texts equal vectors, so equal keys.

    Args:
        vectors: (rows, dim) float16.

    Returns:
        Keys, (rows,) int64.
    """
    bits = vectors.contiguous().view(torch.int16)
    return hash_tokens(bits, torch.arange(1, bits.shape[1] + 1, device=bits.device)).sum(dim=1)


def hash_tokens(ids: Tensor, positions: Tensor) -> Tensor:
    """Hash each token id with its position, elementwise: odd multipliers of 64-bit mixing."""
    mixed = (ids.long() + 1) * (positions * -7046029254386353131 + 1442695040888963407)
    return (mixed ^ (mixed >> 29)) * -4658895280553007687
