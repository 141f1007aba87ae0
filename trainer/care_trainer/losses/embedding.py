"""The embeddings of a batch: sorted by length, in mini-batches, with or without gradient caching.

The caching itself is sentence-transformers' (GradCache, arXiv 2101.06983), and so are mini-batches of a number of rows.
Mini-batches of a number of tokens are cut here: sentence-transformers counts tokens without padding, which does not
bound the memory of one long text among many short ones. Sorting inside the batch keeps the batch random, which
in-batch negatives need, and saves most of the padding. A column of a static encoder is flat (all its
tokens in one row, and where each text begins); it costs next to nothing, and is embedded at once.
"""

import sys
from collections.abc import Iterable
from itertools import chain, islice, pairwise
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from torch import Tensor, nn

from care_trainer.config import Align, Stage
from care_trainer.config.stages import PairStage
from care_trainer.losses.objectives import Batch

Features = dict[str, Any]
"""One column of a batch as the encoder reads it."""
KEYS, LABEL_KEYS = "keys", "label_keys"
"""Names under which the collator puts int64 hashes, by which a loss finds equal texts: of a column, (rows,), and of the
labels, (rows, labels)."""


def is_flat(column: Features) -> bool:
    """Return whether a column is a static encoder's: token ids without padding, and the offset of each text."""
    return "offsets" in column


def without_keys(column: Features) -> Features:
    """Return what the encoder reads of a column."""
    return {name: value for name, value in column.items() if name not in (KEYS, LABEL_KEYS)}


class EmbeddingLoss(CachedLossMixin, nn.Module):
    """A loss for sentence-transformers' trainer: embeds each column and passes the whole batch to an objective."""

    def __init__(
        self,
        model: SentenceTransformer,
        objective: nn.Module,
        *,
        mini_batch_size: int = 64,
        mini_batch_tokens: int | None = None,
        cached: bool = False,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.objective, self.token_dropout = objective, token_dropout
        self.mini_batch_tokens = mini_batch_tokens
        # What is cut by tokens is one mini-batch to sentence-transformers.
        self.mini_batch_size = mini_batch_size if mini_batch_tokens is None else sys.maxsize
        self.uses_gradient_cache = cached
        self._keys: list[Tensor] = []
        self._label_keys: Tensor | None = None
        self._orders: list[Tensor] = []
        self._parts: list[int] = []
        self._flat: dict[int, Tensor] = {}

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch, a scalar."""
        columns = list(sentence_features)
        self._keys = [column[KEYS] for column in columns]
        self._label_keys = columns[0].get(LABEL_KEYS)
        columns = [without_keys(column) for column in columns]
        self._flat = {at: self._embed_flat(column) for at, column in enumerate(columns) if is_flat(column)}
        padded = [column for column in columns if not is_flat(column)]
        self._orders = [column["attention_mask"].sum(dim=1).argsort(stable=True, descending=True) for column in padded]
        padded = [
            hide_tokens(_rows_of(column, order), self.token_dropout)
            for column, order in zip(padded, self._orders, strict=True)
        ]
        parts = [split_by_tokens(column, self.mini_batch_tokens) for column in padded]
        self._parts = list(map(len, parts))
        if self.uses_gradient_cache and padded:
            return self._forward_cached(list(chain.from_iterable(parts)), labels)
        reps = [[rep for rep, _ in self.embed_minibatch_iter(part, True, False)] for part in chain.from_iterable(parts)]
        return self.calculate_loss(reps, labels)

    def _embed_flat(self, column: Features) -> Tensor:
        ids, offsets = drop_tokens(column["input_ids"], column["offsets"], self.token_dropout)
        embeddings: Tensor = self.model({**column, "input_ids": ids, "offsets": offsets})["sentence_embedding"]
        return embeddings

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss, from mini-batches of the embeddings of the padded columns' parts."""
        left = iter(reps)
        columns = [torch.cat(list(chain.from_iterable(islice(left, count)))) for count in self._parts]
        embeddings = [column[order.argsort()] for column, order in zip(columns, self._orders, strict=True)]
        for at, flat in self._flat.items():
            embeddings.insert(at, flat)
        loss: Tensor = self.objective(Batch(embeddings, self._keys, labels, self._label_keys))
        if with_backward:
            torch.autograd.backward(loss)
            loss = loss.detach()
        return loss

    def _forward_cached(self, columns: list[Features], labels: Tensor | None) -> Tensor:
        """Run GradCache, and let what it does not cache take part in the real backward pass.

        That is the objective's own parameters (τ) and the flat columns: GradCache calls backward inside forward, which
        would bypass gradient accumulation and scaling for them.
        """
        flat = self._flat
        self._flat = {at: column.detach().requires_grad_(column.requires_grad) for at, column in flat.items()}
        own = [parameter for parameter in self.objective.parameters() if parameter.requires_grad]
        before = [parameter.grad for parameter in own]
        for parameter in own:
            parameter.grad = None
        loss: Tensor = self.forward_cached(columns, labels)
        for parameter, gradient in zip(own, before, strict=True):
            cached, parameter.grad = parameter.grad, gradient
            loss = _with_gradient(loss, parameter, cached)
        for at, column in flat.items():
            loss = _with_gradient(loss, column, self._flat[at].grad)
        return loss


def embedding_loss(model: SentenceTransformer, objective: nn.Module, stage: Stage) -> EmbeddingLoss:
    """Return the loss of a stage: an objective over the model's embeddings, with the stage's mini-batches."""
    return EmbeddingLoss(
        model,
        objective,
        mini_batch_size=stage.mini_batch_size,
        mini_batch_tokens=stage.mini_batch_tokens,
        cached=stage.cached,
        token_dropout=stage.token_dropout if isinstance(stage, PairStage | Align) else 0.0,
    )


def split_by_tokens(column: Features, tokens: int | None) -> list[Features]:
    """Return parts of a padded column, in order, none of more tokens than this with its padding; None is one part.

    Padding that all texts of a part have at their end does not count: it is dropped before the encoder.
    """
    if tokens is None:
        return [column]
    mask = column["attention_mask"]
    ends = ((mask > 0) * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(dim=1).tolist()
    bounds, width = [0], 0
    for row, end in enumerate(ends):
        width = max(width, end)
        if row > bounds[-1] and width * (row + 1 - bounds[-1]) > tokens:
            bounds.append(row)
            width = end
    return [_rows_of(column, slice(*part)) for part in pairwise([*bounds, len(ends)])]


def drop_tokens(ids: Tensor, offsets: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Leave a random fraction of the tokens out of a flat column."""
    kept = torch.rand(len(ids), device=ids.device) >= fraction
    before = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(dim=0)])
    return ids[kept], before[offsets]


def hide_tokens(column: Features, fraction: float) -> Features:
    """Mask a random fraction of the tokens of a padded column, never the first or the last of a text."""
    if fraction == 0:
        return column
    mask = column["attention_mask"]
    inner = (mask.cumsum(dim=1) > 1) & (mask.flip(1).cumsum(dim=1).flip(1) > 1)
    hidden = inner & (torch.rand(mask.shape, device=mask.device) < fraction)
    return {**column, "attention_mask": mask.masked_fill(hidden, 0)}


def _with_gradient(loss: Tensor, tensor: Tensor, gradient: Tensor | None) -> Tensor:
    """Return the same loss, whose backward pass adds a known gradient to a tensor."""
    return loss if gradient is None else loss + ((tensor - tensor.detach()) * gradient).sum()


def _rows_of(column: Features, which: Tensor | slice) -> Features:
    rows = len(column["attention_mask"])
    return {
        key: value[which] if isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows else value
        for key, value in column.items()
    }
