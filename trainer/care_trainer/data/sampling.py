"""The order of the rows: source weights, drawn anew in every epoch, and optional grouping by length."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.base.sampler import DefaultBatchSampler

WINDOW_BATCHES = 50
"""Batches of a window in which rows are grouped by length: enough for little padding, few enough to mix."""


class EpochSampler(DefaultBatchSampler):
    """Batches that depend on seed and epoch alone, so that a resumed run continues exactly.

    Args:
        dataset: Only its length is used.
        batch_size: Rows in a batch.
        drop_last: Leave a shorter last batch out.
        weights: How often an epoch draws each row, (rows,); the fraction is drawn at random. None means once.
        lengths: Length of each row, (rows,); when given, batches hold rows of similar length.
        valid_label_columns: Unused; part of the interface.
        generator: Unused; part of the interface.
        seed: Seed of the order.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        drop_last: bool,
        weights: Sequence[float] | npt.NDArray[np.float64] | None = None,
        lengths: Sequence[int] | npt.NDArray[np.int32] | None = None,
        valid_label_columns: list[str] | None = None,
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, valid_label_columns, generator, seed)
        self.weights = np.ones(len(dataset)) if weights is None else np.asarray(weights, dtype=np.float64)
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.rows = round(float(self.weights.sum()))

    def __len__(self) -> int:
        return self.rows // self.batch_size if self.drop_last else -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(self._draw(random))
        if self.lengths is not None:
            order = self._group(order, random)
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch.tolist()

    def _draw(self, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Draw exactly ``rows`` rows: the whole part of each weight, and a random share for the fractions."""
        whole = np.floor(self.weights).astype(np.int64)
        drawn = np.repeat(np.arange(len(whole)), whole)
        fraction = self.weights - whole
        missing = self.rows - len(drawn)
        if missing <= 0:
            return drawn[: self.rows]
        # Smallest of (uniform / weight) is weighted sampling without replacement (Efraimidis and Spirakis).
        keys = np.where(fraction > 0, random.exponential(size=len(whole)) / np.maximum(fraction, 1e-12), np.inf)
        return np.concatenate([drawn, np.argsort(keys, kind="stable")[:missing]])

    def _group(self, order: npt.NDArray[np.int64], random: np.random.Generator) -> npt.NDArray[np.int64]:
        assert self.lengths is not None
        window = self.batch_size * WINDOW_BATCHES
        batches: list[npt.NDArray[np.int64]] = []
        for start in range(0, len(order), window):
            part = order[start : start + window]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches.extend(part[at : at + self.batch_size] for at in range(0, len(part), self.batch_size))
        full = [batch for batch in batches if len(batch) == self.batch_size]
        rest = [batch for batch in batches if len(batch) < self.batch_size]
        return np.concatenate([full[at] for at in random.permutation(len(full))] + rest)
