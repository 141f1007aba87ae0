"""The objectives of the contrastive stages, over a whole batch of embeddings; all math in float32.

Equations of arXiv 2604.10937: (1) `InfoNce`, (2) and (3) `AlignObjective`, (4) `Matryoshka`. In the geometry ``cut``
document vectors come normalised at full width and cut, and no objective normalises them again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn import functional

from care_trainer.config import Geometry
from care_trainer.config.stages import PairStage

MAX_SCALE = 100.0
"""Largest 1 / τ of a learned temperature, as in CLIP: beyond it, single pairs dominate the gradient."""
_NO_SCORE = -1e4
"""Score of a candidate that takes no part in a divergence: its probability is zero, its logarithm finite."""


@dataclass(frozen=True)
class Batch:
    """A whole batch, over all its mini-batches, as an objective reads it."""

    embeddings: list[Tensor]
    """One tensor (rows, dim) for each column: query, positive, negatives."""
    keys: list[Tensor]
    """Hashes of the texts, one tensor (rows,) int64 for each column. Equal texts have equal keys."""
    labels: Tensor | None = None
    """Teacher vectors, (rows, dim) or (rows, columns, dim), or scores of the pairs, (rows,), where an objective needs
    them."""
    label_keys: Tensor | None = None
    """Hashes of the texts of teacher vectors, (rows, columns) int64."""


class InfoNce(nn.Module):
    """Equation (1): InfoNCE over the positives and hard negatives of the batch, false negatives left out."""

    def __init__(
        self,
        temperature: float,
        *,
        learn: bool = False,
        margin: float | None = None,
        symmetric: bool = False,
        gather: bool = False,
        geometry: Geometry = "unit",
    ) -> None:
        super().__init__()
        gather = gather and torch.distributed.is_available() and torch.distributed.is_initialized()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn)
        self.margin, self.symmetric, self.gather, self.geometry = margin, symmetric, gather, geometry

    @property
    def temperature(self) -> float:
        """The current τ."""
        return 1.0 / self._scale().item()

    def _scale(self) -> Tensor:
        if self.log_scale.requires_grad:
            with torch.no_grad():  # the weight itself, as in CLIP: clamping its exponential would end its gradient
                self.log_scale.clamp_(max=math.log(MAX_SCALE))
        return self.log_scale.exp()

    def documents(self, vectors: Tensor) -> Tensor:
        """Return document vectors, (rows, dim), as they are scored: float32, of unit length unless they were cut."""
        return vectors.float() if self.geometry == "cut" else functional.normalize(vectors.float(), dim=-1)

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss over the rows of a batch, a scalar."""
        first, *others = batch.embeddings
        columns = [functional.normalize(first.float(), dim=-1), *map(self.documents, others)]
        all_columns = self.gathered(columns)
        all_keys = self.gathered(batch.keys)
        own = self._own(columns[0])
        loss = self._direction(columns[0], all_columns[1:], batch.keys[:2], all_keys, own)
        if self.symmetric:
            swapped = [all_keys[1], all_keys[0]]
            back = self._direction(columns[1], all_columns[:1], batch.keys[1::-1], swapped, own)
            loss = (loss + back) / 2
        return loss

    def gathered(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the rows of all processes, where candidates are gathered; those with a gradient keep it."""
        if not self.gather:
            return list(tensors)
        return [
            all_gather_with_grad(tensor) if tensor.is_floating_point() else all_gather(tensor) for tensor in tensors
        ]

    def mask(self, batch: Batch) -> Tensor:
        """Mark the candidates that are known not to be negatives, except the row's own positive."""
        mask = false_negatives(batch.keys[:2], self.gathered(batch.keys), len(batch.keys) - 1)
        return mask.scatter_(1, self._own(batch.keys[0])[:, None], False)

    def _own(self, column: Tensor) -> Tensor:
        """Return the place of each row's own positive among the gathered ones."""
        rows, rank = len(column), get_rank() if self.gather else 0
        return torch.arange(rows, device=column.device) + rank * rows

    def _direction(
        self, anchors: Tensor, candidates: list[Tensor], own_keys: list[Tensor], keys: list[Tensor], own: Tensor
    ) -> Tensor:
        """Return the cross-entropy of one direction; row i's positive is candidate ``own[i]`` of the first column."""
        cosine = anchors @ torch.cat(candidates).T
        mask = false_negatives(own_keys, keys, len(candidates))
        if self.margin is not None:
            positive = cosine.detach().gather(1, own[:, None])
            mask |= cosine.detach() > positive + self.margin
        return cross_entropy(cosine * self._scale(), mask, own)


def cross_entropy(scores: Tensor, mask: Tensor, own: Tensor) -> Tensor:
    """Return equation (1) of scores (rows, candidates); ``own[i]`` is row i's positive; ``mask`` leaves others out."""
    mask = mask.scatter(1, own[:, None], False)
    return functional.cross_entropy(scores.masked_fill(mask, -torch.inf), own)


def squared_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return equation (2), the mean over rows of a sum over dimensions: ``mse_loss`` would be ``dim`` times smaller."""
    return (student - teacher).square().sum(dim=-1).mean()


def false_negatives(own_keys: Sequence[Tensor], keys: Sequence[Tensor], columns: int) -> Tensor:
    """Mark candidates that are known not to be negatives.

    Their text is the row's own positive or its query, or they are positives of rows with the same query.
    """
    query, positive = own_keys[0][:, None], own_keys[1][:, None]
    texts = torch.cat(list(keys[1 : 1 + columns]))[None, :]
    mask = (texts == positive) | (texts == query)
    mask[:, : len(keys[0])] |= keys[0][None, :] == query
    return mask


class Matryoshka(nn.Module):
    """Equation (4): the **mean** of an objective over nested dimensions (sentence-transformers' own sums them)."""

    def __init__(self, objective: nn.Module, dims: Sequence[int]) -> None:
        super().__init__()
        self.objective, self.dims = objective, tuple(dims)

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss over the rows of a batch and over all dimensions, a scalar."""
        losses = [
            self.objective(replace(batch, embeddings=[column[:, :dim] for column in batch.embeddings]))
            for dim in self.dims
        ]
        return torch.stack(losses).mean()


@dataclass(frozen=True)
class Others:
    """Teacher's vectors from which each step draws further candidates."""

    vectors: npt.NDArray[np.floating]
    """(texts, dim); a memmap is read where it is drawn from."""
    keys: npt.NDArray[np.int64]
    """Hashes of the texts, (texts,)."""
    drawn: int
    """Vectors that a step draws."""

    def draw(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return vectors, (drawn, dim), and keys, (drawn,), of random texts."""
        rows = torch.randint(len(self.keys), (self.drawn,)).numpy()
        return torch.from_numpy(self.vectors[rows]).to(device), torch.from_numpy(self.keys[rows]).to(device)


class AlignObjective(nn.Module):
    """Equation (3): λ1 · Asym-InfoNCE + λ2 · squared distance to the teacher's vector of the text or its document.

    Candidates beyond the batch are off in the paper's recipe.
    """

    def __init__(
        self,
        contrastive: InfoNce,
        *,
        contrastive_weight: float = 1.0,
        mse_weight: float = 1.0,
        others: Others | None = None,
    ) -> None:
        super().__init__()
        self.contrastive, self.others = contrastive, others
        self.contrastive_weight, self.mse_weight = contrastive_weight, mse_weight

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss over the rows of a batch; ``batch.labels`` are the teacher's vectors, (rows, dim)."""
        assert batch.labels is not None
        student = functional.normalize(batch.embeddings[0].float(), dim=-1)
        teacher = self.contrastive.documents(batch.labels.to(student.device))
        loss = self.mse_weight * squared_distance(student, teacher)
        if self.contrastive_weight:
            teacher_keys = batch.keys[0] if batch.label_keys is None else batch.label_keys[:, 0]
            pairs = Batch([student, teacher], [batch.keys[0], teacher_keys])
            if self.others is not None:
                vectors, keys = self.others.draw(student.device)
                pairs = Batch([*pairs.embeddings, vectors], [*pairs.keys, keys])
            loss = loss + self.contrastive_weight * self.contrastive(pairs)
        return loss


class PairObjective(nn.Module):
    """InfoNCE on pairs that belong together, CoSENT on pairs with a score; a batch holds one kind.

    CoSENT asks that a pair with a higher score has the higher cosine, over all pairs of pairs of the batch:
    log(1 + Σ exp((cos_j - cos_i) / τ)) over those with score_i > score_j. The published script has no loss of its own
    for scores; this one is sentence-transformers' default for them.
    """

    def __init__(self, contrastive: InfoNce, *, score_temperature: float = 0.05) -> None:
        super().__init__()
        self.contrastive, self.score_temperature = contrastive, score_temperature

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch; ``batch.labels`` are the scores of its pairs, (rows,), or None."""
        if batch.labels is None:
            loss: Tensor = self.contrastive(batch)
            return loss
        first, second = batch.embeddings
        query = functional.normalize(first.float(), dim=-1)
        similarity = (query * self.contrastive.documents(second)).sum(dim=-1)
        similarity, scores = self.contrastive.gathered([similarity, batch.labels.to(similarity.device).float()])
        differences = (similarity[None, :] - similarity[:, None]) / self.score_temperature
        wrong = differences[scores[:, None] > scores[None, :]]
        return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(dim=0)


def info_nce_of(stage: PairStage, geometry: Geometry = "unit") -> InfoNce:
    """Return the contrastive objective that a stage's settings describe."""
    return InfoNce(
        stage.temperature,
        learn=stage.learn_temperature,
        margin=stage.margin,
        symmetric=stage.symmetric,
        gather=True,
        geometry=geometry,
    )


def pair_objective(stage: PairStage, geometry: Geometry = "unit") -> PairObjective:
    """Return the objective of a stage's pairs, with a score or without."""
    return PairObjective(info_nce_of(stage, geometry), score_temperature=stage.score_temperature)


class FrozenDocuments(nn.Module):
    """Equation (1) against documents that do not train: their vectors are the labels, queries the only column."""

    def __init__(self, contrastive: InfoNce) -> None:
        super().__init__()
        self.contrastive = contrastive

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss; labels are (rows, dim), or (rows, 1 + negatives, dim), positive first, with keys."""
        assert batch.labels is not None and batch.label_keys is not None
        labels = batch.labels.to(batch.embeddings[0].device)
        documents = [labels] if labels.ndim == 2 else list(labels.unbind(dim=1))
        keys = [batch.keys[0], *batch.label_keys.to(labels.device).unbind(dim=1)]
        loss: Tensor = self.contrastive(Batch([batch.embeddings[0], *documents], keys))
        return loss
