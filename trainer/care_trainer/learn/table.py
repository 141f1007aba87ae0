"""The training of a table of token vectors: the sum of a text's tokens points to the vector stored for the text.

The loss is InfoNCE over the vectors of the batch and a random sample of the others (each text has to find its own) plus
the squared distance to it (equations 1 and 2 of the paper, Stage I, with a query encoder without layers). Equal vectors
are not negatives of each other. With soft targets, the cross-entropy to the similarities of the text's own vector takes
the place of InfoNCE.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from care_qdrant.errors import TrainingError
from care_qdrant.types import Vectors
from care_trainer.learn.settings import LearnSettings
from care_trainer.models.tokens import Parts, TokenLists, rarity

SAME = 0.999
"""Cosine above which two stored vectors count as one."""
_BETAS, _EPSILON = (0.9, 0.999), np.float32(1e-8)
"""Settings of Adam: decay of its two moments, and what is added to the root of the second."""
_SHORTEST = np.float32(1e-12)
"""Length below which a vector is not made longer."""
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
    """The file with the state of a run, from which an interrupted one is resumed."""

    path: Path
    digest: str
    """Hash of everything that the run depends on; a state of another run is not used."""

    def load(self) -> "State | None":
        """Return the saved state of this run; None if there is none, or none that is whole."""
        try:
            with self.path.open("rb") as file, np.load(file) as kept:
                counts = json.loads(str(kept["counts"]))
                if counts.pop("digest") != self.digest:
                    return None
                fit = Fit(kept["table"], **counts.pop("fit"))
                return State(kept["weights"], Adam(kept["first"], kept["second"], fit.steps), fit, **counts)
        # A power cut leaves any part of a file, a bad disk other bits.
        except (OSError, ValueError, EOFError, KeyError, RuntimeError, BadZipFile):
            return None

    def save(self, state: "State") -> None:
        """Keep a state in place of the one before."""
        fit = {key: value for key, value in asdict(state.fit).items() if key != "table"}
        counts = json.dumps({"digest": self.digest, "best": state.best, "fit": fit})
        partial = self.path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(
                file,
                counts=np.array(counts),
                weights=state.weights,
                first=state.adam.first,
                second=state.adam.second,
                table=state.fit.table,
            )
        partial.replace(self.path)


@dataclass(slots=True)
class Adam:
    """Adam for the rows of a table that have a gradient, as torch's SparseAdam: the others stay as they are."""

    first: Vectors
    """First moments, (tokens, width)."""
    second: Vectors
    """Second moments, (tokens, width)."""
    steps: int = 0

    def step(self, table: Vectors, rows: npt.NDArray[np.integer], gradient: Vectors, rate: float) -> None:
        """Move some rows of a table against their gradient, (rows, width)."""
        self.steps += 1
        first, second = self.first[rows], self.second[rows]
        first += (gradient - first) * np.float32(1 - _BETAS[0])
        second += (gradient**2 - second) * np.float32(1 - _BETAS[1])
        self.first[rows], self.second[rows] = first, second
        corrections = [1 - beta**self.steps for beta in _BETAS]
        table[rows] -= np.float32(rate * corrections[1] ** 0.5 / corrections[0]) * first / (np.sqrt(second) + _EPSILON)


@dataclass(slots=True)
class State:
    """A training run between two steps."""

    weights: Vectors
    adam: Adam
    fit: Fit
    best: float
    """Best score so far."""


def start_table(tokens: TokenLists, vocabulary: int, width: int, seed: int) -> Vectors:
    """Return random token vectors, (vocabulary, width), as long as their tokens are rare."""
    directions = np.random.default_rng(seed).normal(size=(vocabulary, width)) / np.sqrt(width)
    return np.asarray(directions * rarity(tokens.counts(vocabulary))[:, None], dtype=np.float32)


def encode(table: npt.NDArray[np.float32], tokens: TokenLists) -> Vectors:
    """Return the normalised sums of token vectors, (texts, width); zero for a text without tokens."""
    sums = tokens.sums(table)
    return np.asarray(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), _SHORTEST), dtype=np.float32)


def folded(table: Vectors, parts: Parts, mean: Vectors) -> Vectors:
    """Return the table that needs no parts any more; tokens without a trained part point a little to the mean."""
    sums = parts.fold(table)
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
    negatives: npt.NDArray[np.floating] | None = None,
) -> Fit:
    """Train a table and return it as of the last evaluation whose score equals the best one within noise.

    Further negatives are drawn from the texts' own vectors, or from others, (vectors, width).
    """
    steps = max(1, min(settings.max_steps, settings.epochs * -(-len(tokens) // settings.batch)))
    every = max(1, steps // EVALUATIONS)
    score_at_start = score(table) if score else 0.0
    adam = Adam(np.zeros_like(table), np.zeros_like(table))
    state = State(table.copy(), adam, Fit(table, 0, 0, score_at_start, []), score_at_start)
    if resume is not None and (kept := resume.load()) is not None:
        state = kept
    fit, losses = state.fit, 0.0
    for step, rows in enumerate(_batches(len(tokens), settings, steps), start=1):
        if step <= fit.steps:
            continue
        # Dropout and further negatives follow from seed and step, so a resume needs no random state.
        generator = np.random.default_rng([settings.seed, 2, step])
        rate = settings.learning_rate * (1 - (step - 1) / steps)
        targets, pool = vectors[rows].astype(np.float32), vectors if negatives is None else negatives
        loss = _step(state, tokens.take(rows), targets, pool, settings, rate, generator)
        if not np.isfinite(loss):
            raise TrainingError(f"step {step} of {steps}: the loss is {loss}; lower the learning rate")
        losses += loss
        on_step(step, steps)
        fit.steps = step
        if step % every and step != steps:
            continue
        # Without a measure a later table counts as a better one.
        current = score(state.weights) if score else float(step)
        fit.history.append({"step": step, "loss": round(losses / ((step - 1) % every + 1), 4), "score": current})
        losses = 0.0
        state.best = max(state.best, current)
        if current >= state.best - _NOISE:
            fit.table, fit.best_step, fit.score = state.weights.copy(), step, current
        elif step - fit.best_step >= PATIENCE * every:
            break
        if resume is not None:
            resume.save(state)
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
    state: State,
    batch: TokenLists,
    targets: Vectors,
    pool: npt.NDArray[np.floating],
    settings: LearnSettings,
    rate: float,
    generator: np.random.Generator,
) -> float:
    """Take one step on some texts, and return its loss."""
    batch = batch.drop(settings.token_dropout, generator)
    # Rows of the batch alone, each once: their gradient is small.
    used, places = np.unique(batch.flat, return_inverse=True)
    counts = TokenLists(places, batch.starts).matrix(len(used))
    sums = counts @ state.weights[used]
    others = pool[generator.integers(len(pool), size=settings.negatives)].astype(np.float32)
    norms = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), _SHORTEST)
    queries = sums / norms
    loss, gradient = alignment_loss(queries, targets, others, settings.temperature, settings.softness)
    gradient = (gradient - queries * (gradient * queries).sum(axis=1, keepdims=True)) / norms
    state.adam.step(state.weights, used, counts.T @ gradient, rate)
    return loss


def alignment_loss(
    queries: Vectors, documents: Vectors, others: Vectors, temperature: float, softness: float = 0.0
) -> tuple[float, Vectors]:
    """Return the loss, with the squared distance, and its gradient by the queries, (queries, width)."""
    count = len(queries)
    candidates = np.concatenate([documents, others])
    similarities = documents @ candidates.T
    scores = queries @ candidates.T / candidates.dtype.type(temperature)
    if softness:
        targets = _softmax(similarities / candidates.dtype.type(temperature * softness))
    else:
        lengths = np.linalg.norm(candidates, axis=1)
        targets = np.eye(count, len(candidates), dtype=candidates.dtype)
        scores[(similarities > SAME * lengths[:count, None] * lengths) & (targets == 0)] = -np.inf
    shares = _softmax(scores)
    away = queries - documents
    likelihoods = np.log(np.maximum(shares, np.finfo(shares.dtype).tiny))
    loss = float(-(targets * likelihoods).sum(axis=1).mean() + (away**2).sum(axis=1).mean())
    gradient = (shares - targets) @ candidates / (count * temperature) + 2 / count * away
    return loss, np.asarray(gradient, dtype=queries.dtype)


def _softmax(scores: Vectors) -> Vectors:
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
