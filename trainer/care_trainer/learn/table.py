"""The training of a table of token vectors: the sum of a text's tokens points to the vector stored for the text.

The loss is InfoNCE over the vectors of the batch and a random sample of the others (each text has to find its own) plus
the squared distance to it (equations 1 and 2 of the paper, Stage I, with a query encoder without layers). Equal vectors
are no negatives of each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from care_qdrant.errors import TrainingError
from care_qdrant.types import Vectors
from care_trainer.learn.settings import LearnSettings
from care_trainer.losses.objectives import cross_entropy, squared_distance
from care_trainer.models.tokens import Parts, TokenLists, rarity

SAME = 0.999
"""Cosine above which two stored vectors count as one."""
EVALUATIONS = 24
"""Evaluations of a whole training run, evenly spaced."""
PATIENCE = 6
"""Evaluations below the best one, by more than noise, after which training ends."""
_UNSEEN = 1e-3
"""Length of the vector of a token without any trained part, in that of an average one: an unknown word alone then finds
something average instead of ending in a division by zero."""
_NOISE = 0.01
"""Difference of two scores that is noise. The learning rate falls to the end, so the latest table within it of the best
is kept: on one of three seeds the best of the noisy scores was at half of the steps, and cost 0.02 nDCG@10."""


@dataclass(slots=True)
class Fit:
    """A trained table."""

    table: Vectors
    """(tokens, width): token vectors of the step that was kept for its score on held-out documents."""
    steps: int
    best_step: int
    score: float
    """Score of the step that was kept, by the caller's measure."""
    history: list[dict[str, float]]
    """Step, loss and score, a dictionary for each evaluation."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The file with the state of a run, from which an interrupted one goes on."""

    path: Path
    digest: str
    """Hash of everything that the run depends on; a state of another run is not used."""

    def load(self) -> dict[str, Any] | None:
        """Return the state that was kept, None where there is none of this run."""
        if not self.path.is_file():
            return None
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        return state if state["digest"] == self.digest else None

    def save(self, **state: Any) -> None:
        """Keep a state in place of the one before."""
        partial = self.path.with_suffix(".partial")
        torch.save({"digest": self.digest, **state}, partial)
        partial.replace(self.path)


def start_table(tokens: TokenLists, vocabulary: int, width: int, seed: int) -> Vectors:
    """Return random token vectors, (vocabulary, width), as long as their tokens are rare."""
    directions = np.random.default_rng(seed).normal(size=(vocabulary, width)) / np.sqrt(width)
    return np.asarray(directions * rarity(tokens.counts(vocabulary))[:, None], dtype=np.float32)


def encode(table: npt.NDArray[np.float32], tokens: TokenLists) -> Vectors:
    """Return the normalised sums of token vectors, (texts, width); zero for a text without tokens."""
    offsets = torch.from_numpy(tokens.starts[:-1])
    sums = nn.functional.embedding_bag(torch.from_numpy(tokens.flat), torch.from_numpy(table), offsets, mode="sum")
    return np.asarray(nn.functional.normalize(sums, dim=1).numpy(), dtype=np.float32)


def folded(table: Vectors, parts: Parts, mean: Vectors) -> Vectors:
    """Return the table that needs no parts any more; tokens without a trained part point a little to the mean."""
    sums = parts.fold(torch.from_numpy(table)).numpy()
    lengths = np.linalg.norm(sums, axis=1)
    empty = lengths < 1e-9
    average = float(lengths[~empty].mean()) if not empty.all() else 1.0
    sums[empty] = _UNSEEN * average * mean / max(float(np.linalg.norm(mean)), 1e-9)
    return sums


def spread(vectors: npt.NDArray[np.floating]) -> float:
    """Return the mean squared distance of vectors from their mean: what a temperature has to be measured by."""
    return float(((vectors - vectors.mean(axis=0, dtype=np.float64)) ** 2).sum(axis=1).mean())


def fit_table(
    table: Vectors,
    tokens: TokenLists,
    vectors: npt.NDArray[np.floating],
    settings: LearnSettings,
    score: Callable[[Vectors], float] | None,
    on_step: Callable[[int, int], None],
    resume: Resume | None = None,
) -> Fit:
    """Train a table and return it as it was at the last evaluation whose score was that of the best, within noise."""
    # A loop of its own, not that of the stages (`care_trainer.training.loop`), whose curves could not be equal:
    # - SparseAdam moves the tokens of a batch alone. AdamW decays the others as well, and its step over the whole
    #   table, 12,000 tokens of 512 dimensions, takes 68 ms of CPU time beside the 151 ms of a step here.
    # - Dropout and further negatives follow from seed and step by NumPy, so a resume needs no random state; the
    #   stages draw them from torch's, which a checkpoint restores.
    # - transformers' linear schedule computes (steps - step) / steps, which differs from the rate below in the last
    #   bit at 1,490 of 4,000 steps, and a stage keeps its best score, not the latest one within noise.
    steps = max(1, min(settings.max_steps, settings.epochs * -(-len(tokens) // settings.batch)))
    every = max(1, steps // EVALUATIONS)
    weights = nn.Parameter(torch.from_numpy(table.copy()))
    optimizer = torch.optim.SparseAdam([weights], lr=settings.learning_rate)
    fit = Fit(table, 0, 0, score(table) if score else 0.0, [])
    best = fit.score
    if resume is not None and (state := resume.load()) is not None:
        weights.data.copy_(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        fit = Fit(state["kept"].numpy(), state["steps"], state["best_step"], state["score"], state["history"])
        best = state["best"]
    losses = 0.0
    for step, rows in enumerate(_batches(len(tokens), settings, steps), start=1):
        if step <= fit.steps:
            continue
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 - (step - 1) / steps)
        loss = _step(weights, optimizer, tokens, vectors, rows, settings, step)
        if not np.isfinite(loss):
            raise TrainingError(f"step {step} of {steps}: the loss is {loss}; lower the learning rate")
        losses += loss
        on_step(step, steps)
        fit.steps = step
        if step % every and step != steps:
            continue
        # Without a measure a later table counts as a better one.
        found = score(weights.detach().numpy()) if score else float(step)
        fit.history.append({"step": step, "loss": round(losses / ((step - 1) % every + 1), 4), "score": found})
        losses = 0.0
        best = max(best, found)
        if found >= best - _NOISE:
            fit.table, fit.best_step, fit.score = weights.detach().numpy().copy(), step, found
        elif step - fit.best_step >= PATIENCE * every:
            break
        if resume is not None:
            resume.save(
                weights=weights.detach(),
                optimizer=optimizer.state_dict(),
                kept=torch.from_numpy(fit.table),
                best=best,
                steps=step,
                best_step=fit.best_step,
                score=fit.score,
                history=fit.history,
            )
    return fit


def _batches(texts: int, settings: LearnSettings, steps: int) -> Iterator[npt.NDArray[np.int64]]:
    generator = np.random.default_rng([settings.seed, 1])
    size = min(settings.batch, texts)
    order, at = generator.permutation(texts), 0
    for _ in range(steps):
        if at + size > texts:
            order, at = generator.permutation(texts), 0
        yield order[at : at + size]
        at += size


def _step(
    weights: nn.Parameter,
    optimizer: torch.optim.Optimizer,
    tokens: TokenLists,
    vectors: npt.NDArray[np.floating],
    rows: npt.NDArray[np.int64],
    settings: LearnSettings,
    step: int,
) -> float:
    generator = np.random.default_rng([settings.seed, 2, step])
    batch = tokens.take(rows).drop(settings.token_dropout, generator)
    # Rows of the batch alone, each once: their gradient is small and needs no sorting, which halves the time of a step.
    used, places = np.unique(batch.flat, return_inverse=True)
    used_rows = torch.from_numpy(used)
    table = weights.detach()[used_rows].requires_grad_()
    sums = nn.functional.embedding_bag(torch.from_numpy(places), table, torch.from_numpy(batch.starts[:-1]), mode="sum")
    targets = torch.from_numpy(vectors[rows].astype(np.float32))
    others = torch.from_numpy(vectors[generator.integers(len(vectors), size=settings.negatives)].astype(np.float32))
    loss = alignment_loss(nn.functional.normalize(sums, dim=1), targets, others, settings.temperature)
    loss.backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None
    weights.grad = torch.sparse_coo_tensor(
        used_rows[None], table.grad, weights.shape, check_invariants=True, is_coalesced=True
    )
    optimizer.step()
    return float(loss.detach())


def alignment_loss(queries: Tensor, documents: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Return InfoNCE plus the squared distance, a scalar."""
    candidates = torch.cat([documents, others])
    same = documents @ candidates.T > SAME * documents.norm(dim=1)[:, None] * candidates.norm(dim=1)
    own = torch.arange(len(queries))
    return cross_entropy(queries @ candidates.T / temperature, same, own) + squared_distance(queries, documents)
