"""How a batch gets its embeddings: sorted by length, in mini-batches, with or without gradient caching.

The caching itself is sentence-transformers' (GradCache, arXiv 2101.06983). Sorting inside the batch keeps the batch
random, which in-batch negatives want, and computes next to no padding. A column of a static encoder is flat (all its
tokens in one row, and where each text begins); it costs next to nothing, and is embedded at once.
"""

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from torch import Tensor, nn

from care_trainer.objectives import Batch

Features = dict[str, Any]


class EmbeddingLoss(CachedLossMixin, nn.Module):
    """A loss for sentence-transformers' trainer: embeds each column and hands the whole batch to an objective.

    Args:
        model: Embeds every column.
        objective: Module from `Batch` to a scalar.
        mini_batch_size: Rows embedded at once.
        mini_batch_tokens: Tokens embedded at once, instead of rows.
        cached: Embed twice, and hold the activations of one mini-batch only.
        token_dropout: Share of the tokens that the encoder does not see.
    """

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
        self.mini_batch_size, self.mini_batch_num_tokens = mini_batch_size, mini_batch_tokens
        self.uses_gradient_cache = cached
        self._keys: list[Tensor] = []
        self._orders: list[Tensor] = []
        self._flat: dict[int, Tensor] = {}

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Give the loss of a batch, one feature dictionary per column."""
        columns = list(sentence_features)
        self._keys = [bag_keys(column) if is_flat(column) else text_keys(column) for column in columns]
        self._flat = {at: self._embed_flat(column) for at, column in enumerate(columns) if is_flat(column)}
        padded = [column for column in columns if not is_flat(column)]
        self._orders = [column["attention_mask"].sum(dim=1).argsort(stable=True, descending=True) for column in padded]
        padded = [
            hide_tokens(_permute(column, order), self.token_dropout)
            for column, order in zip(padded, self._orders, strict=True)
        ]
        if self.uses_gradient_cache and padded:
            return self._forward_cached(padded, labels)
        reps = [[rep for rep, _ in self.embed_minibatch_iter(column, True, False)] for column in padded]
        return self.calculate_loss(reps, labels)

    def _embed_flat(self, column: Features) -> Tensor:
        ids, offsets = drop_tokens(column["input_ids"], column["offsets"], self.token_dropout)
        embeddings: Tensor = self.model({**column, "input_ids": ids, "offsets": offsets})["sentence_embedding"]
        return embeddings

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Give the loss, from mini-batches of the padded columns' embeddings; with ``with_backward`` also gradients."""
        embeddings = [torch.cat(parts)[order.argsort()] for parts, order in zip(reps, self._orders, strict=True)]
        for at, flat in self._flat.items():
            embeddings.insert(at, flat)
        loss: Tensor = self.objective(Batch(embeddings, self._keys, labels))
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


def _with_gradient(loss: Tensor, tensor: Tensor, gradient: Tensor | None) -> Tensor:
    """Give the same loss, whose backward pass brings a gradient that is known already to a tensor."""
    return loss if gradient is None else loss + ((tensor - tensor.detach()) * gradient).sum()


def is_flat(column: Features) -> bool:
    """Say whether a column is a static encoder's: token ids without padding, and the offset of each text."""
    return "offsets" in column


def drop_tokens(ids: Tensor, offsets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Leave a random share of the tokens out of a flat column."""
    kept = torch.rand(len(ids), device=ids.device) >= share
    before = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(dim=0)])
    return ids[kept], before[offsets]


def bag_keys(column: Features) -> Tensor:
    """Hash the token ids of each text of a flat column, (rows,) int64: equal texts have equal keys."""
    ids, offsets = column["input_ids"], column["offsets"]
    positions = torch.arange(len(ids), device=ids.device)
    rows = torch.bucketize(positions, offsets, right=True) - 1
    hashes = hash_tokens(ids, positions - offsets[rows] + 1)
    return torch.zeros(len(offsets), dtype=torch.long, device=ids.device).index_add(0, rows, hashes)


def hide_tokens(column: Features, share: float) -> Features:
    """Hide a random share of the tokens from the encoder, never the first or the last of a text."""
    if share == 0:
        return column
    mask = column["attention_mask"]
    inner = (mask.cumsum(dim=1) > 1) & (mask.flip(1).cumsum(dim=1).flip(1) > 1)
    hidden = inner & (torch.rand(mask.shape, device=mask.device) < share)
    return {**column, "attention_mask": mask.masked_fill(hidden, 0)}


def text_keys(column: Features) -> Tensor:
    """Hash the token ids of each row, (rows,) int64: equal texts have equal keys, whatever the padding."""
    mask = column["attention_mask"].long()
    keys: Tensor = (hash_tokens(column["input_ids"], mask.cumsum(dim=1)) * mask).sum(dim=1)
    return keys


def hash_tokens(ids: Tensor, positions: Tensor) -> Tensor:
    """Hash each token with its position: odd multipliers of 64-bit mixing, and int64 that wraps around."""
    mixed = (ids.long() + 1) * (positions * -7046029254386353131 + 1442695040888963407)
    return (mixed ^ (mixed >> 29)) * -4658895280553007687


def _permute(column: Features, order: Tensor) -> Features:
    rows = len(order)
    return {
        key: value[order] if isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows else value
        for key, value in column.items()
    }
