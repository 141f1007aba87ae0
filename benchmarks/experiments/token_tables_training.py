"""Training of one table of token vectors on pairs, in sparse products: a minute where torch needs several.

A text is the sum of its pieces' vectors, at unit length; the loss is the cross-entropy over the batch in both
directions. A step reads and moves only the rows of its own pieces (Adam with lazy moments).
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from tokenizers import Tokenizer

Csr = Any
"""A `scipy.sparse.csr_matrix`, (texts, tokens)."""
Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

MAX_TOKENS = 160
EPOCHS = 9
BATCH = 512
LEARNING_RATE = 3e-3
DROPOUT = 0.3
"""Share of a text's pieces that a step leaves out."""
SMOOTHING = 50.0
"""Added to each count, so that a piece that was hardly seen gets no extreme weight."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a pair."""

    width: int
    merges: int | None = None
    """Merges of the tokenizer that its pieces are made by: all (None), or the first so many; 0 is characters."""
    seed: int = 0
    temperature: float = 0.1
    lead: int | None = None
    """Position at which a token of a document counts half as much as the first (`lead_tokens` of stage static)."""


def counts_of(tokenizer: Tokenizer, texts: Sequence[str], lead: int | None = None) -> Csr:
    """Return how often each token occurs in each text; with ``lead`` the one at position p as 1 / (1 + p / lead)."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    columns: list[int] = []
    values: list[float] = []
    ends = [0]
    for text in texts:
        counts: dict[int, float] = defaultdict(float)
        for position, token in enumerate(tokenizer.encode(text, add_special_tokens=False).ids):
            counts[token] += 1.0 if lead is None else 1 / (1 + position / lead)
        columns += counts.keys()
        values += counts.values()
        ends.append(len(columns))
    shape = (len(texts), tokenizer.get_vocab_size())
    return sparse.csr_matrix((np.array(values, np.float32), np.array(columns, np.int32), np.array(ends)), shape=shape)


def pieces_of(tokenizer: Tokenizer, merges: int | None) -> Csr:
    """Return how often each token (rows) has each piece (columns), where only the first merges are made."""
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    later = model["merges"][merges:] if merges is not None else []
    halves = {"".join(pair): pair for pair in reversed(later)}
    first = {"".join(pair) for pair in model["merges"][:merges]}

    def split(token: str) -> list[str]:
        if token not in halves or token in first:
            return [token]
        left, right = halves[token]
        return [*split(left), *split(right)]

    rows, columns = [], []
    for token, number in vocabulary.items():
        for piece in split(token):
            rows.append(number)
            columns.append(vocabulary[piece])
    size = len(vocabulary)
    return sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=(size, size))


def train_table(
    queries: Csr,
    documents: Csr,
    query_numbers: Numbers,
    document_numbers: Numbers,
    weights: npt.NDArray[np.float64],
    *,
    width: int,
    seed: int,
    temperature: float,
) -> Vectors:
    """Train a table, (tokens, width).

    Args:
        queries: Counts of pieces, one row a pair.
        documents: The same of the answers.
        query_numbers: Equal for equal texts: those are no negatives of each other.
        document_numbers: The same of the answers.
        weights: How often an epoch reads each pair, on average.
        width: Dimensions.
        seed: Of the start, the order and the dropout.
        temperature: Of the softmax.
    """
    generator = np.random.default_rng(seed)
    table = _start(queries, documents, width, generator)
    adam = _Adam(table)
    steps = int(EPOCHS * int(weights.sum()) / BATCH)
    order = np.zeros(0, np.int64)
    for step in range(steps):
        while len(order) < BATCH:
            times = np.floor(weights + generator.random(len(weights))).astype(int)
            order = np.concatenate([order, generator.permutation(np.repeat(np.arange(len(weights)), times))])
        batch, order = order[:BATCH], order[BATCH:]
        texts = sparse.vstack([_dropped(side[batch], generator) for side in (queries, documents)]).tocsr()
        pieces, places = np.unique(texts.indices, return_inverse=True)
        texts = sparse.csr_matrix((texts.data, places.astype(np.int32), texts.indptr), shape=(2 * BATCH, len(pieces)))
        same = _equal(query_numbers[batch]) | _equal(document_numbers[batch])
        gradient = texts.T.tocsr() @ _gradient(texts @ table[pieces], same, temperature)
        adam.step(pieces, gradient, LEARNING_RATE * (1 - step / steps))
    return table


def unit(vectors: Vectors) -> Vectors:
    """Return rows of length 1; zero stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-6), dtype=np.float32)


def _start(queries: Csr, documents: Csr, width: int, generator: np.random.Generator) -> Vectors:
    """Return random directions, as long as their pieces are rare."""
    counts = np.asarray(queries.sum(axis=0) + documents.sum(axis=0)).ravel()
    rarity = np.maximum(np.log((counts.sum() + 1) / (counts + SMOOTHING)), 0.1)
    directions = generator.standard_normal((len(counts), width)) / width**0.5
    return np.asarray(directions * (rarity / rarity.mean())[:, None], dtype=np.float32)


def _dropped(texts: Csr, generator: np.random.Generator) -> Csr:
    texts.data = texts.data * (generator.random(len(texts.data)) >= DROPOUT)
    return texts


def _equal(numbers: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((numbers[:, None] == numbers[None]) & ~np.eye(len(numbers), dtype=bool))


def _gradient(sums: Vectors, same: npt.NDArray[np.bool_], temperature: float) -> Vectors:
    """Return the gradient of the loss by the sums of queries and documents, (2 * batch, width)."""
    lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-6)
    vectors = sums / lengths
    queries, documents = np.split(vectors, 2)
    logits = queries @ documents.T / temperature
    logits[same] = -1e4
    by_query, by_document = _softmax(logits, axis=1), _softmax(logits, axis=0)
    by_logit = ((by_query + by_document) / 2 - np.eye(len(logits), dtype=np.float32)) / (len(logits) * temperature)
    by_vector = np.concatenate([by_logit @ documents, by_logit.T @ queries])
    return np.asarray((by_vector - (by_vector * vectors).sum(axis=1, keepdims=True) * vectors) / lengths)


def _softmax(logits: Vectors, axis: int) -> Vectors:
    powers = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


class _Adam:
    """Adam (Kingma and Ba 2015) whose moments move only where a step has a gradient."""

    def __init__(self, table: Vectors, decay: tuple[float, float] = (0.9, 0.999)) -> None:
        self.table, self.decay, self.steps = table, decay, 0
        self.mean, self.square = np.zeros_like(table), np.zeros_like(table)

    def step(self, rows: Numbers, gradient: Vectors, rate: float) -> None:
        """Move some rows of the table in place."""
        self.steps += 1
        first, second = self.decay
        mean = self.mean[rows] = self.mean[rows] * first + gradient * (1 - first)
        square = self.square[rows] = self.square[rows] * second + gradient * gradient * (1 - second)
        scale = np.sqrt(square / (1 - second**self.steps)) + 1e-8
        self.table[rows] -= rate * mean / (1 - first**self.steps) / scale
