"""Hashes of texts, by which a loss finds equal texts in a batch: int64, no strings."""

from typing import Any

import torch
from torch import Tensor

Features = dict[str, Any]
"""One column of a batch as the encoder reads it."""
KEYS, LABEL_KEYS = "keys", "label_keys"
"""Where the collator puts the keys of a column's texts, (rows,), and of the texts of the labels, (rows, labels)."""


def is_flat(column: Features) -> bool:
    """Return whether a column is a static encoder's: token ids without padding, and the offset of each text."""
    return "offsets" in column


def without_keys(column: Features) -> Features:
    """Return what the encoder reads of a column."""
    return {name: value for name, value in column.items() if name not in (KEYS, LABEL_KEYS)}


def text_keys(column: Features) -> Tensor:
    """Return the keys that the collator gave each text, or else hash its token ids."""
    if KEYS in column:
        given: Tensor = column[KEYS]
        return given
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


def hash_tokens(ids: Tensor, positions: Tensor) -> Tensor:
    """Hash each token id with its position, elementwise: odd multipliers of 64-bit mixing."""
    mixed = (ids.long() + 1) * (positions * -7046029254386353131 + 1442695040888963407)
    return (mixed ^ (mixed >> 29)) * -4658895280553007687
