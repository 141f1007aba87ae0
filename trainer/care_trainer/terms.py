"""Learns what the terms of a query count in BM25 (`care_qdrant.encoders.terms.weights`) from pairs.

A term begins with the logarithm of its rarity among the questions: what most of them say, 怎么办, tells nothing of one.
From there the contrastive loss of Stage II (paper, equation 2) moves the weights, with BM25 as the score and the other
documents of the batch as negatives, by Adam in sparse products: a minute for 100,000 pairs on one core. Pairs that are
held out decide whether the weights are worth having.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from qdrant_client import models
from scipy import sparse

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.weights import TermWeights
from care_qdrant.errors import InputError, counted
from care_qdrant.measures import ndcg_at_10
from care_qdrant.model.card import Card, read_card
from care_qdrant.model.folder import add_term_weights
from care_trainer.config import Data
from care_trainer.data.table import pair_rows, scored
from care_trainer.learn.labelled import Estimate, estimate

FEWEST_PAIRS = 200
"""Fewest pairs that weights are learned from: fewer leave too few to hold out."""
MOST_PAIRS = 200_000
MOST_HELD_OUT = 2_000
SEEN_PAIRS = 6
"""Times that a pair is seen."""
BATCH = 512
LEARNING_RATE = 0.01
TEMPERATURE = 0.5
"""Temperature of the scores, which are BM25 divided by the root of the number of terms."""
MIN_QUERIES = 3
"""Queries that a term must be in to keep a weight of its own."""

Csr = Any
"""A `scipy.sparse.csr_matrix`, (texts, terms)."""
Numbers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TermGate:
    """Gain by the weights on held-out questions, each searched among the documents of all of them."""

    pairs: int
    """Trained on."""
    held_out: int
    ndcg_at_10_bm25: float
    ndcg_at_10: float
    gain: Estimate

    def __str__(self) -> str:
        gain = self.gain
        return (
            f"BM25 on {self.held_out:,} held-out pairs: nDCG@10 {self.ndcg_at_10_bm25:.3f} without weights, "
            f"{self.ndcg_at_10:.3f} with them, gain {gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        )

    @property
    def passed(self) -> bool:
        """Whether the 95 % interval of the gain lies above 0."""
        return self.gain.low > 0


def learn_terms(data: Data, root: Path, cache: Path, *, seed: int) -> tuple[TermWeights, TermGate]:
    """Return the weights that the pairs of a data set teach, and what they are worth.

    Args:
        data: Pairs; those with a score are left out.
        root: Folder of its files.
        cache: Folder of parsed rows.
        seed: Of the split, the order and the bootstrap.

    Raises:
        InputError: There are fewer than 200 pairs.
    """
    rows = pair_rows(data, root, cache, by_source=True)
    random = np.random.default_rng(seed)
    chosen = np.flatnonzero(~scored(rows) & (rows.weights > 0))
    if len(chosen) > MOST_PAIRS:
        chosen = np.sort(random.choice(chosen, MOST_PAIRS, replace=False))
    if len(chosen) < FEWEST_PAIRS:
        raise InputError(f"{', '.join(data.files)}: {counted(len(chosen), 'pair')}; expected at least {FEWEST_PAIRS}")
    columns = rows.columns.select(chosen)
    pairs = _Pairs.of(columns["query"], columns["positive"], rows.weights[chosen])
    held_out = _held_out(pairs, random)
    train = pairs.rows(np.flatnonzero(~(held_out | pairs.shares_text_with(held_out))))
    weights = _trained(train, random)
    frequency = _by_text(train.queries, train.query_numbers).getnnz(axis=0)
    kept = frequency >= MIN_QUERIES
    found = TermWeights(pairs.terms[kept], weights[kept])
    return found, _gate(pairs.rows(np.flatnonzero(held_out)), len(train), np.where(kept, weights, 1.0), seed)


def give_terms(folder: Path, data: Data, root: Path, cache: Path, *, seed: int) -> tuple[Card | None, TermGate]:
    """Write the weights that a data set teaches into a model; None and no file where they gain nothing."""
    read_card(folder)  # one that is no model is said before the minute that follows
    weights, gate = learn_terms(data, root, cache, seed=seed)
    return (add_term_weights(folder, weights, asdict(gate)) if gate.passed else None), gate


@dataclass(frozen=True)
class _Pairs:
    terms: npt.NDArray[np.uint32]
    """Ids of the columns, ascending: the terms of all queries."""
    queries: Csr
    """Term counts."""
    documents: Csr
    """Saturated term frequencies."""
    query_numbers: Numbers
    """Equal for equal texts."""
    document_numbers: Numbers
    weights: npt.NDArray[np.float64]
    """Number of times that an epoch reads each pair."""

    def __len__(self) -> int:
        return len(self.weights)

    @classmethod
    def of(cls, queries: Sequence[str], documents: Sequence[str], weights: npt.NDArray[np.float64]) -> "_Pairs":
        texts = dict.fromkeys(documents)
        average = bm25.average_length(texts)
        asked = _Terms.of(bm25.query_vector, queries)
        terms = np.unique(asked.terms)
        answers = _Terms.of(lambda text: bm25.document_vector(text, average_length=average), documents)
        return cls(terms, asked.matrix(terms), answers.matrix(terms), _numbers(queries), _numbers(documents), weights)

    def rows(self, places: Numbers) -> "_Pairs":
        return _Pairs(
            self.terms,
            self.queries[places],
            self.documents[places],
            self.query_numbers[places],
            self.document_numbers[places],
            self.weights[places],
        )

    def shares_text_with(self, others: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which pairs have a text of some of them, (pairs,)."""
        same_query = np.isin(self.query_numbers, self.query_numbers[others])
        return np.asarray(same_query | np.isin(self.document_numbers, self.document_numbers[others]))


@dataclass(frozen=True)
class _Terms:
    terms: npt.NDArray[np.uint32]
    values: Weights
    ends: Numbers

    @classmethod
    def of(cls, vector: Callable[[str], models.SparseVector], texts: Iterable[str]) -> "_Terms":
        terms, values, ends = [np.zeros(0, np.uint32)], [np.zeros(0, np.float32)], [0]
        for text in texts:
            found = vector(text)
            terms.append(np.array(found.indices, np.uint32))
            values.append(np.array(found.values, np.float32))
            ends.append(ends[-1] + len(found.indices))
        return cls(np.concatenate(terms), np.concatenate(values), np.array(ends))

    def matrix(self, known: npt.NDArray[np.uint32]) -> Csr:
        """Return the texts by the known terms; others are left out."""
        places = np.minimum(np.searchsorted(known, self.terms), len(known) - 1)
        values = np.where(known[places] == self.terms, self.values, 0.0).astype(np.float32)
        found = sparse.csr_matrix((values, places, self.ends), shape=(len(self.ends) - 1, len(known)))
        found.eliminate_zeros()
        return found


def _numbers(texts: Sequence[str]) -> Numbers:
    known: dict[str, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts])


def _by_text(matrix: Csr, numbers: Numbers) -> Csr:
    """Return the rows of distinct texts."""
    return matrix[np.unique(numbers, return_index=True)[1]]


def _held_out(pairs: _Pairs, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Return which pairs are held out: a tenth, drawn as often as an epoch reads them."""
    wanted = min(MOST_HELD_OUT, len(pairs) // 10)
    keys = random.exponential(size=len(pairs)) / np.minimum(pairs.weights, 1.0)
    held_out = np.zeros(len(pairs), np.bool_)
    held_out[np.argsort(keys)[:wanted]] = True
    return held_out


def _rarity(matrix: Csr) -> Weights:
    """Return the inverse document frequency of each term, as Qdrant's ``Modifier.IDF`` has it."""
    count, found = matrix.shape[0], matrix.getnnz(axis=0)
    return np.asarray(np.log((count - found + 0.5) / (found + 0.5) + 1), dtype=np.float32)


def _trained(pairs: _Pairs, random: np.random.Generator) -> Weights:
    """Return a weight for each term, (terms,)."""
    asked = _by_text(pairs.queries, pairs.query_numbers)
    most = np.log(2 * (asked.shape[0] + 1))
    start = np.log(np.log((asked.shape[0] + 1) / (asked.getnnz(axis=0) + 0.5)) / most).astype(np.float32)
    rarity = _rarity(_by_text(pairs.documents, pairs.document_numbers))
    documents = (pairs.documents @ sparse.diags(rarity)).tocsr()
    moved, mean, square = (np.zeros_like(start) for _ in range(3))
    batch = min(BATCH, len(pairs))
    steps = max(1, round(SEEN_PAIRS * pairs.weights.sum() / batch))
    order = np.zeros(0, np.int64)
    for step in range(steps):
        while len(order) < batch:
            times = np.floor(pairs.weights + random.random(len(pairs))).astype(int)
            order = np.concatenate([order, random.permutation(np.repeat(np.arange(len(pairs)), times))])
        rows, order = order[:batch], order[batch:]
        terms, places = np.unique(pairs.queries[rows].indices, return_inverse=True)
        queries = pairs.queries[rows]
        queries = sparse.csr_matrix((queries.data, places, queries.indptr), shape=(batch, len(terms)))
        queries = queries @ sparse.diags(np.exp(start[terms] + moved[terms]))
        same = _equal(pairs.query_numbers[rows]) | _equal(pairs.document_numbers[rows])
        gradient = _gradient(queries, documents[rows][:, terms], same)
        # Adam, whose moments move only where a batch has the term.
        mean[terms] += 0.1 * (gradient - mean[terms])
        square[terms] += 0.001 * (gradient**2 - square[terms])
        scale = np.sqrt(square[terms] / (1 - 0.999 ** (step + 1))) + 1e-8
        moved[terms] -= LEARNING_RATE * (1 - step / steps) * mean[terms] / (1 - 0.9 ** (step + 1)) / scale
    return np.asarray(np.exp(start + moved), dtype=np.float32)


def _equal(numbers: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((numbers[:, None] == numbers[None]) & ~np.eye(len(numbers), dtype=bool))


def _gradient(queries: Csr, documents: Csr, same: npt.NDArray[np.bool_]) -> Weights:
    """Return the gradient of the loss by the logarithm of each weight, (terms,)."""
    scale = TEMPERATURE * np.sqrt(np.maximum(queries.getnnz(axis=1), 1))[:, None]
    logits = (queries @ documents.T).toarray() / scale
    logits[same] = -np.inf
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    by_score = (powers / powers.sum(axis=1, keepdims=True) - np.eye(len(logits))) / (len(logits) * scale)
    return np.asarray(queries.multiply(by_score @ documents).sum(axis=0), dtype=np.float32).ravel()


def _gate(pairs: _Pairs, trained: int, weights: Weights, seed: int) -> TermGate:
    """Search the documents of the held-out pairs with each question, without the weights and with them."""
    documents = _by_text(pairs.documents, pairs.document_numbers)
    document_of = {number: row for row, number in enumerate(np.unique(pairs.document_numbers).tolist())}
    relevant: dict[int, list[str]] = {}
    first: dict[int, int] = {}
    for row, (query, document) in enumerate(
        zip(pairs.query_numbers.tolist(), pairs.document_numbers.tolist(), strict=True)
    ):
        relevant.setdefault(query, []).append(str(document_of[document]))
        first.setdefault(query, row)
    queries = pairs.queries[list(first.values())]

    def scores(of_terms: Weights) -> npt.NDArray[np.float64]:
        found = (queries @ sparse.diags(of_terms * _rarity(documents)) @ documents.T).toarray()
        best = np.argsort(-found, axis=1, kind="stable")[:, :10]
        return np.array(ndcg_at_10(best.astype(str).tolist(), list(relevant.values())))

    before, after = scores(np.ones_like(weights)), scores(weights)
    gain = estimate((after - before).tolist(), seed)
    return TermGate(trained, len(pairs), float(before.mean()), float(after.mean()), gain)
