"""The order of the rows: source weights, new draws in every epoch, batches of one source, and grouping by length."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.base.sampler import DefaultBatchSampler

from care_qdrant.errors import InputError, counted

WINDOW_BATCHES = 50
"""Batches of a window in which rows are grouped by length: enough for little padding, few enough to mix."""

Order = npt.NDArray[np.int64]
Sources = tuple[npt.NDArray[np.int32], Sequence[str]]
"""The number of each row's source, (rows,), and the names of the sources by number."""


class EpochSampler(DefaultBatchSampler):
    """Batches that depend on seed and epoch alone, so that a resumed run continues exactly.

    With ``sources``, a step on several processes holds one source: the rows of a short last step are repeated.
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
        sources: Sources | None = None,
        processes: int = 1,
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, valid_label_columns, generator, seed)
        self.weights = np.ones(len(dataset)) if weights is None else np.asarray(weights, dtype=np.float64)
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.on_epoch = on_epoch
        self.step_rows = batch_size * processes if sources is not None else batch_size
        self.parts = [np.arange(len(dataset))] if sources is None else self._by_source(sources)
        if len(self) < (processes if drop_last else 1):
            raise InputError(
                f"an epoch draws {counted(sum(map(self._drawn, self.parts)), 'row', of=len(dataset))}, fewer than the "
                f"{batch_size * processes if drop_last else 1} of a step; use smaller batches, or raise the weights"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that comes next."""
        super().set_epoch(epoch)
        if self.on_epoch is not None:
            self.on_epoch(epoch)

    def __len__(self) -> int:
        rows = [self._drawn(part) for part in self.parts]
        steps = sum(count // self.step_rows if self.drop_last else -(-count // self.step_rows) for count in rows)
        return steps * (self.step_rows // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        steps = []
        for part in self.parts:
            order = random.permutation(self._draw(part, random))
            if self.lengths is not None:
                order = self._group(order, random)
            steps += [order[start : start + self.step_rows] for start in range(0, len(order), self.step_rows)]
        if len(self.parts) > 1:  # else all steps of one source would come before the next source
            steps = [steps[at] for at in random.permutation(len(steps))]
        for step in steps:
            if len(step) < self.step_rows:
                if self.drop_last:
                    continue
                if self.step_rows > self.batch_size:
                    # accelerate would fill the batches of a short step with rows of other sources.
                    step = np.resize(step, self.step_rows)
            for start in range(0, len(step), self.batch_size):
                yield step[start : start + self.batch_size].tolist()

    def _by_source(self, sources: Sources) -> list[Order]:
        codes, names = sources
        parts = [np.flatnonzero(codes == code) for code in range(len(names))]
        for name, part in zip(names, parts, strict=True):
            if self.drop_last and self._drawn(part) < self.step_rows:
                raise InputError(
                    f"source {name!r}: has {counted(self._drawn(part), 'row')} an epoch, fewer than the "
                    f"{self.step_rows} of a step, and batch_by_source mixes none; use smaller batches, raise its "
                    "weight, or set it to 0"
                )
        return parts

    def _drawn(self, part: Order) -> int:
        return round(float(self.weights[part].sum()))

    def _draw(self, part: Order, random: np.random.Generator) -> Order:
        """Draw rows of a part: the whole part of each weight, and a random share for the fractions."""
        weights, rows = self.weights[part], self._drawn(part)
        whole = np.floor(weights).astype(np.int64)
        drawn = np.repeat(np.arange(len(whole)), whole)
        fraction = weights - whole
        missing = rows - len(drawn)
        if missing <= 0:
            return part[drawn[:rows]]
        # Smallest of (uniform / weight) is weighted sampling without replacement (Efraimidis and Spirakis).
        keys = np.where(fraction > 0, random.exponential(size=len(whole)) / np.maximum(fraction, 1e-12), np.inf)
        drawn = np.concatenate([drawn, np.argsort(keys, kind="stable")[:missing]])
        return part[drawn]

    def _group(self, order: Order, random: np.random.Generator) -> Order:
        assert self.lengths is not None
        window = self.batch_size * WINDOW_BATCHES
        batches: list[Order] = []
        for start in range(0, len(order), window):
            part = order[start : start + window]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches.extend(part[at : at + self.batch_size] for at in range(0, len(part), self.batch_size))
        full = [batch for batch in batches if len(batch) == self.batch_size]
        rest = [batch for batch in batches if len(batch) < self.batch_size]
        # A source of one row may draw none in an epoch.
        return np.concatenate([order[:0], *(full[at] for at in random.permutation(len(full))), *rest])
