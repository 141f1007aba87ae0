"""The objectives of the contrastive stages, over a whole batch of embeddings; all math in float32.

Equations of arXiv 2604.10937: (1) `InfoNce`, (2) and (3) `AlignObjective`, (4) `Matryoshka`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn import functional

from care_trainer.losses.keys import vector_keys

MAX_SCALE = 100.0
"""Largest 1 / τ of a learned temperature, as in CLIP: beyond it, single pairs dominate the gradient."""


@dataclass(frozen=True)
class Batch:
    """What an objective reads: a whole batch, over all its mini-batches."""

    embeddings: list[Tensor]
    """One tensor (rows, dim) for each column: query, positive, negatives."""
    keys: list[Tensor]
    """Hashes of the texts, one tensor (rows,) int64 for each column. Equal texts have equal keys."""
    labels: Tensor | None = None
    """Teacher vectors, (rows, dim) or (rows, columns, dim), for the objectives that need them."""


class InfoNce(nn.Module):
    """Equation (1): InfoNCE over the positives and hard negatives of the batch, false negatives left out.

    Args:
        temperature: Temperature τ.
        learn: Train τ (its logarithm), as in stage ``unsupervised``.
        margin: Leave out candidates that score above the row's own positive by more than this; None keeps them.
        symmetric: Average with the direction document → query.
        gather: In distributed training, take the candidates of all processes.
    """

    def __init__(
        self,
        temperature: float,
        *,
        learn: bool = False,
        margin: float | None = None,
        symmetric: bool = False,
        gather: bool = False,
    ) -> None:
        super().__init__()
        gather = gather and torch.distributed.is_available() and torch.distributed.is_initialized()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn)
        self.margin, self.symmetric, self.gather = margin, symmetric, gather

    @property
    def temperature(self) -> float:
        """The current τ."""
        return 1.0 / self._scale().item()

    def _scale(self) -> Tensor:
        return self.log_scale.exp().clamp(max=MAX_SCALE) if self.log_scale.requires_grad else self.log_scale.exp()

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss over the rows of a batch, a scalar."""
        columns = [functional.normalize(column.float(), dim=-1) for column in batch.embeddings]
        rows, rank = len(columns[0]), get_rank() if self.gather else 0
        all_columns = [all_gather_with_grad(column) for column in columns] if self.gather else columns
        all_keys = [all_gather(keys) for keys in batch.keys] if self.gather else batch.keys
        own = torch.arange(rows, device=columns[0].device) + rank * rows
        loss = self._direction(columns[0], all_columns[1:], batch.keys[:2], all_keys, own)
        if self.symmetric:
            swapped = [all_keys[1], all_keys[0]]
            back = self._direction(columns[1], all_columns[:1], batch.keys[1::-1], swapped, own)
            loss = (loss + back) / 2
        return loss

    def _direction(
        self, anchors: Tensor, candidates: list[Tensor], own_keys: list[Tensor], keys: list[Tensor], own: Tensor
    ) -> Tensor:
        """Return the cross-entropy of one direction; row i's positive is candidate ``own[i]`` of the first column."""
        cosine = anchors @ torch.cat(candidates).T
        mask = false_negatives(own_keys, keys, len(candidates))
        if self.margin is not None:
            positive = cosine.detach().gather(1, own[:, None])
            mask |= cosine.detach() > positive + self.margin
        mask.scatter_(1, own[:, None], False)
        scores = (cosine * self._scale()).masked_fill(mask, -torch.inf)
        return functional.cross_entropy(scores, own)


def false_negatives(own_keys: Sequence[Tensor], keys: Sequence[Tensor], columns: int) -> Tensor:
    """Mark candidates that are known to be no negatives.

    Those are candidates whose text is the row's own positive or its query, and positives of rows with the same query.

    Args:
        own_keys: Keys of the rows' queries and positives.
        keys: Keys of all queries, positives and negatives.
        columns: Number of candidate columns (positives and hard negatives).

    Returns:
        (rows, columns * candidates) bool.
    """
    query, positive = own_keys[0][:, None], own_keys[1][:, None]
    texts = torch.cat(list(keys[1 : 1 + columns]))[None, :]
    mask = (texts == positive) | (texts == query)
    mask[:, : len(keys[0])] |= keys[0][None, :] == query
    return mask


class Matryoshka(nn.Module):
    """Equation (4): the **mean** of an objective over nested dimensions (sentence-transformers' own sums them)."""

    def __init__(self, objective: InfoNce, dims: Sequence[int]) -> None:
        super().__init__()
        self.objective, self.dims = objective, tuple(dims)

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss over the rows of a batch and over all dimensions, a scalar."""
        losses = [
            self.objective(Batch([column[:, :dim] for column in batch.embeddings], batch.keys)) for dim in self.dims
        ]
        return torch.stack(losses).mean()


class AlignObjective(nn.Module):
    """Equation (3): λ1 · Asym-InfoNCE + λ2 · squared distance to the teacher's vector of the same text.

    Equation (2) is the squared norm, a sum over dimensions; ``mse_loss`` would be their mean, ``dim`` times smaller.
    A third term, off in the paper's recipe, is KALE's: the divergence of the softmax over the student's dimensions
    from that over the teacher's (arXiv 2304.01016).
    """

    def __init__(
        self,
        contrastive: InfoNce,
        *,
        contrastive_weight: float = 1.0,
        mse_weight: float = 1.0,
        kl_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.contrastive = contrastive
        self.contrastive_weight, self.mse_weight, self.kl_weight = contrastive_weight, mse_weight, kl_weight

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss over the rows of a batch; ``batch.labels`` are the teacher's vectors, (rows, dim)."""
        assert batch.labels is not None
        student = functional.normalize(batch.embeddings[0].float(), dim=-1)
        teacher = functional.normalize(batch.labels.to(student.device).float(), dim=-1)
        loss = self.mse_weight * (student - teacher).square().sum(dim=-1).mean()
        if self.contrastive_weight:
            pairs = Batch([student, teacher], [batch.keys[0], batch.keys[0]])
            loss = loss + self.contrastive_weight * self.contrastive(pairs)
        if self.kl_weight:
            loss = loss + self.kl_weight * divergence(teacher, student, self.contrastive.temperature)
        return loss


class DistillObjective(nn.Module):
    """InfoNCE + KL divergence of the student's in-batch scores from the teacher's (table 7, after RocketQAv2)."""

    def __init__(self, contrastive: InfoNce, *, kl_weight: float = 1.0) -> None:
        super().__init__()
        self.contrastive, self.kl_weight = contrastive, kl_weight

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss; ``batch.labels`` are the teacher's query and document vectors, (rows, 2, dim)."""
        assert batch.labels is not None
        student = [functional.normalize(column.float(), dim=-1) for column in batch.embeddings[:2]]
        teacher = functional.normalize(batch.labels.to(student[0].device).float(), dim=-1)
        scores = student[0] @ student[1].T
        wanted = teacher[:, 0] @ teacher[:, 1].T
        loss: Tensor = self.contrastive(batch)
        return loss + self.kl_weight * divergence(wanted, scores, self.contrastive.temperature)


class FrozenDocuments(nn.Module):
    """Equation (1) against documents that do not train: their vectors are the labels, queries the only column."""

    def __init__(self, contrastive: InfoNce) -> None:
        super().__init__()
        self.contrastive = contrastive

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss; ``batch.labels`` are (rows, dim), or (rows, 1 + negatives, dim), positive first."""
        assert batch.labels is not None
        labels = batch.labels.to(batch.embeddings[0].device)
        documents = [labels] if labels.ndim == 2 else list(labels.unbind(dim=1))
        keys = [vector_keys(column) for column in documents]
        loss: Tensor = self.contrastive(Batch([batch.embeddings[0], *documents], [batch.keys[0], *keys]))
        return loss


def divergence(wanted: Tensor, found: Tensor, temperature: float) -> Tensor:
    """Return KL(softmax(wanted / τ) ‖ softmax(found / τ)), averaged over rows.

    Args:
        wanted: Scores (rows, columns) to be learned.
        found: Scores of the same shape.
        temperature: Temperature τ.
    """
    return functional.kl_div(
        functional.log_softmax(found / temperature, dim=-1),
        functional.log_softmax(wanted / temperature, dim=-1),
        reduction="batchmean",
        log_target=True,
    )
