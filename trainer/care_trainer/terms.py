"""Learns the weights of query terms in BM25 (`care_qdrant.encoders.terms.weights`) from pairs.

A term begins with the logarithm of its rarity among the questions: words that most questions share, such as 怎么办, do
not tell questions apart. From there the contrastive loss of Stage II (paper, equation 2) moves all parameters of the
formula, with BM25 as the score and the other documents of the batch, which is of one source, as negatives, by Adam in
sparse products: two minutes for 100,000 pairs on one core. Held-out pairs decide whether the weights are kept.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.weights import NO_NEIGHBOUR, QueryTerms, Shape, Table, TermWeights
from care_qdrant.errors import InputError, counted
from care_qdrant.measures import Estimate, estimate, ndcg_at_10
from care_qdrant.model.card import Card, read_card
from care_qdrant.model.folder import add_term_weights
from care_trainer.config import Data
from care_trainer.data.table import pair_rows, scored

FEWEST_PAIRS = 200
"""Fewest pairs to learn weights from; with fewer, too few can be held out."""
FEWEST_TRAINED = 100
"""Fewest pairs that share no text with the held-out ones."""
MOST_PAIRS = 200_000
MOST_HELD_OUT = 2_000
SEEN_PAIRS = 6
"""Passes over each pair."""
BATCH = 512
LEARNING_RATE = 0.01
"""Learning rate of the terms' own weights."""
CONTEXT_RATE = 0.005
"""Learning rate of the shared parameters: weights of kinds and neighbours, and the shape."""
TEMPERATURE = 0.5
"""Temperature of the scores, which are BM25 divided by the root of the number of terms."""
MIN_QUERIES = 3
"""Queries that a term must be in to keep a weight of its own."""
MIN_NEIGHBOURS = 5
"""Different query terms that a character must stand next to before it gets a weight."""

Csr = Any
"""A `scipy.sparse.csr_matrix`, (texts, terms)."""
Numbers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TermGate:
    """Gain by the weights on held-out questions, each searched among the documents of all held-out pairs."""

    pairs: int
    """Number of training pairs."""
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
    """Learn term weights from the pairs of a data set, and measure their gain on held-out pairs.

    Args:
        data: Pairs; those with a score are left out.
        root: Folder of its files.
        cache: Folder of parsed rows.
        seed: Seed of the split, the order and the bootstrap.

    Raises:
        InputError: There are fewer than 200 pairs, or fewer than 100 share no text with the held-out ones.
    """
    rows = pair_rows(data, root, cache, by_source=True)
    random = np.random.default_rng(seed)
    chosen = np.flatnonzero(~scored(rows) & (rows.weights > 0))
    if len(chosen) > MOST_PAIRS:
        chosen = np.sort(random.choice(chosen, MOST_PAIRS, replace=False))
    if len(chosen) < FEWEST_PAIRS:
        raise InputError(f"{', '.join(data.files)}: {counted(len(chosen), 'pair')}; expected at least {FEWEST_PAIRS}")
    columns = rows.columns.select(chosen)
    sources = rows.sources[0][chosen]
    pairs = _Pairs.of(columns["query"], columns["positive"], rows.weights[chosen], sources)
    held_out = _held_out(pairs, random)
    train = pairs.rows(np.flatnonzero(~(held_out | pairs.shares_text_with(held_out))))
    if len(train) < FEWEST_TRAINED:
        raise InputError(
            f"{', '.join(data.files)}: only {counted(len(train), 'pair', of=len(pairs))} share no text with those held "
            f"out; expected at least {FEWEST_TRAINED}: too few questions or documents differ"
        )
    learned = _trained(train, random)
    kept = _by_text(train.queries, train.query_numbers).getnnz(axis=0) >= MIN_QUERIES
    learned.terms[~kept] = 0.0
    weights = np.exp(learned.terms[kept]).astype(np.float32)
    kept_weights = TermWeights(pairs.terms[kept], weights, learned.contexts, learned.shape)
    return kept_weights, _gate(pairs.rows(np.flatnonzero(held_out)), len(train), learned, seed)


def give_terms(folder: Path, data: Data, root: Path, cache: Path, *, seed: int) -> tuple[Card | None, TermGate]:
    """Learn term weights from a data set and write them into a model; None, and no file, if they gain nothing."""
    read_card(folder)  # an invalid folder is reported before the minute that follows
    weights, gate = learn_terms(data, root, cache, seed=seed)
    return (add_term_weights(folder, weights, asdict(gate)) if gate.passed else None), gate


@dataclass(frozen=True)
class _Pairs:
    terms: npt.NDArray[np.uint32]
    """Ids of the columns, ascending: the terms of all queries."""
    queries: Csr
    """Numbers from 1 of the terms of all distinct queries, where a query has them: rows of `counts` and `contexts`."""
    counts: Reals
    contexts: npt.NDArray[np.uint32]
    """Keys of `QueryTerms`, (terms of all distinct queries, 3)."""
    documents: Csr
    """Saturated term frequencies."""
    query_numbers: Numbers
    """Equal for equal texts."""
    document_numbers: Numbers
    weights: Reals
    """Times that an epoch reads each pair."""
    sources: npt.NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.weights)

    @classmethod
    def of(
        cls,
        queries: Sequence[str],
        documents: Sequence[str],
        weights: Reals,
        sources: npt.NDArray[np.integer],
    ) -> "_Pairs":
        query_numbers, document_numbers = _numbers(queries), _numbers(documents)
        asked = list(map(QueryTerms.of, dict.fromkeys(queries)))
        ids = np.array([index for query in asked for index in query.ids], np.uint32)
        terms, places = np.unique(ids, return_inverse=True)
        ends = np.cumsum([0, *(len(query.ids) for query in asked)])
        numbered = sparse.csr_matrix((np.arange(1, len(ids) + 1), places, ends), shape=(len(asked), len(terms)))
        return cls(
            terms,
            numbered[query_numbers],
            np.array([count for query in asked for count in query.counts]),
            np.array([key for query in asked for key in query.contexts], np.uint32).reshape(-1, 3),
            _answers(dict.fromkeys(documents), terms)[document_numbers],
            query_numbers,
            document_numbers,
            weights,
            sources,
        )

    def rows(self, places: Numbers) -> "_Pairs":
        return replace(
            self,
            queries=self.queries[places],
            documents=self.documents[places],
            query_numbers=self.query_numbers[places],
            document_numbers=self.document_numbers[places],
            weights=self.weights[places],
            sources=self.sources[places],
        )

    def shares_text_with(self, others: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which pairs share a text with the pairs in ``others``, (pairs,)."""
        same_query = np.isin(self.query_numbers, self.query_numbers[others])
        return np.asarray(same_query | np.isin(self.document_numbers, self.document_numbers[others]))


def _answers(texts: Collection[str], known: npt.NDArray[np.uint32]) -> Csr:
    """Return the documents as weights of the known terms, (texts, terms)."""
    places, counts, ends, lengths = [np.zeros(0, np.int32)], [np.zeros(0)], [0], []
    for text in texts:
        counts_of = bm25.term_counts(text, lead=bm25.DEFAULT_LEAD)
        columns = _places(known, np.fromiter(counts_of, np.uint32, len(counts_of)))
        has = columns < len(known)
        places.append(columns[has].astype(np.int32))
        counts.append(np.fromiter(counts_of.values(), np.float64, len(counts_of))[has])
        ends.append(ends[-1] + len(places[-1]))
        lengths.append(sum(counts_of.values()))
    average, of_each = max(1.0, sum(lengths) / max(1, len(lengths))), np.repeat(lengths, np.diff(ends))
    values = bm25.saturated(np.concatenate(counts), of_each, average_length=average).astype(np.float32)
    return sparse.csr_matrix((values, np.concatenate(places), ends), shape=(len(lengths), len(known)))


def _places(keys: npt.NDArray[np.uint32], queried: npt.NDArray[np.uint32]) -> Numbers:
    """Return the positions of ``queried`` in the ascending ``keys``; ``len(keys)`` for a key that is missing."""
    if not len(keys):
        return np.zeros(queried.shape, np.int64)
    places = np.searchsorted(keys, queried)
    return np.where(keys[np.minimum(places, len(keys) - 1)] == queried, places, len(keys))


def _numbers(texts: Sequence[str]) -> Numbers:
    known: dict[str, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts])


def _by_text(matrix: Csr, numbers: Numbers) -> Csr:
    """Return the rows of distinct texts."""
    return matrix[np.unique(numbers, return_index=True)[1]]


def _held_out(pairs: _Pairs, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Return which pairs are held out: a tenth, drawn in proportion to how often an epoch reads them."""
    count = min(MOST_HELD_OUT, len(pairs) // 10)
    keys = random.exponential(size=len(pairs)) / np.minimum(pairs.weights, 1.0)
    held_out = np.zeros(len(pairs), np.bool_)
    held_out[np.argsort(keys)[:count]] = True
    return held_out


def _rarity(matrix: Csr) -> Weights:
    """Return the inverse document frequency of each term, as Qdrant's ``Modifier.IDF`` has it."""
    count, frequency = matrix.shape[0], matrix.getnnz(axis=0)
    return np.asarray(np.log((count - frequency + 0.5) / (frequency + 0.5) + 1), dtype=np.float32)


@dataclass(frozen=True)
class _Learned:
    terms: Reals
    """Logarithms of the weights of all terms."""
    contexts: Table
    shape: Shape

    def query_values(self, pairs: "_Pairs", queries: Csr) -> Csr:
        """Return the values of the terms of some queries, (queries, terms)."""
        entries = queries.data - 1
        logarithms = self.terms[queries.indices] + self.contexts.of(pairs.contexts[entries]).sum(axis=1)
        values = self.shape.values(logarithms, pairs.counts[entries], _rows(queries))
        return sparse.csr_matrix((values, queries.indices, queries.indptr), shape=queries.shape)


class _Adam:
    """Adam's moments of some parameters; parameters that a batch does not use keep theirs."""

    def __init__(self, size: int, rate: float) -> None:
        self._rate, self._step = rate, 0
        self._mean, self._square = np.zeros(size), np.zeros(size)

    def change(self, at: Any, gradient: Reals, decay: float) -> Reals:
        """Return the change of the parameters at some places."""
        self._step += 1
        self._mean[at] += 0.1 * (gradient - self._mean[at])
        self._square[at] += 0.001 * (gradient**2 - self._square[at])
        scale = np.sqrt(self._square[at] / (1 - 0.999**self._step)) + 1e-8
        return np.asarray(-self._rate * decay * self._mean[at] / (1 - 0.9**self._step) / scale)


def _trained(pairs: _Pairs, random: np.random.Generator) -> _Learned:
    """Train the parameters of the formula, with a weight for each term."""
    asked = _by_text(pairs.queries, pairs.query_numbers)
    most = np.log(2 * (asked.shape[0] + 1))
    terms = np.log(np.log((asked.shape[0] + 1) / (asked.getnnz(axis=0) + 0.5)) / most)
    keys, seen = np.unique(pairs.contexts[asked.data - 1], return_counts=True)
    keys = keys[(seen >= MIN_NEIGHBOURS) & (keys != NO_NEIGHBOUR)]
    contexts = _places(keys, pairs.contexts)
    # Weights of the keys, of all others, which stays 0, and the shape.
    shared = np.concatenate([np.zeros(len(keys) + 1), astuple(Shape())])
    rarity = _rarity(_by_text(pairs.documents, pairs.document_numbers))
    documents = (pairs.documents @ sparse.diags(rarity)).tocsr()
    batch = min(BATCH, len(pairs))
    steps = max(1, round(SEEN_PAIRS * pairs.weights.sum() / batch))
    by_term, by_shared = _Adam(len(terms), LEARNING_RATE), _Adam(len(shared), CONTEXT_RATE)
    for step, rows in enumerate(islice(_batches(pairs.weights, pairs.sources, batch, random), steps)):
        queries = pairs.queries[rows]
        entries = queries.data - 1
        columns, places = np.unique(queries.indices, return_inverse=True)
        queries = sparse.csr_matrix((entries, places, queries.indptr), shape=(len(rows), len(columns)))
        own = terms[columns[places]] + shared[contexts[entries]].sum(axis=1)
        same = _equal(pairs.query_numbers[rows]) | _equal(pairs.document_numbers[rows])
        shape, counts = Shape(*shared[-3:]), pairs.counts[entries]
        by_logarithm, by_shape = _gradient(queries, own, counts, shape, documents[rows][:, columns], same)
        by_key = np.zeros(len(keys) + 1)
        for key in contexts[entries].T:
            by_key += np.bincount(key, by_logarithm, minlength=len(by_key))
        by_key[-1] = 0.0
        decay = 1 - step / steps
        shared += by_shared.change(slice(None), np.concatenate([by_key, by_shape]), decay)
        by_column = np.asarray(np.bincount(places, by_logarithm, minlength=len(columns)), np.float64)
        terms[columns] += by_term.change(columns, by_column, decay)
    return _Learned(terms, Table(keys, shared[: len(keys)].astype(np.float32)), Shape(*shared[-3:].tolist()))


def _batches(
    weights: Reals, sources: npt.NDArray[np.integer], size: int, random: np.random.Generator
) -> Iterator[Numbers]:
    """Yield batches of one source each, without end; the remainders of all sources are batched together."""
    while True:
        times = np.floor(weights + random.random(len(weights))).astype(int)
        order = random.permutation(np.repeat(np.arange(len(weights)), times))
        whole, left = [], []
        for source in np.unique(sources[order]):
            mine = order[sources[order] == source]
            # A batch of few pairs has few negatives, and teaches little.
            end = len(mine) - (len(mine) % size if len(mine) % size <= size // 4 else 0)
            whole += [mine[start : start + size] for start in range(0, end, size)]
            left.append(mine[end:])
        rest = random.permutation(np.concatenate(left)) if left else order
        whole += [rest[start : start + size] for start in range(0, len(rest), size)]
        yield from (whole[place] for place in random.permutation(len(whole)))


def _equal(numbers: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((numbers[:, None] == numbers[None]) & ~np.eye(len(numbers), dtype=bool))


def _rows(matrix: Csr) -> Numbers:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _gradient(
    queries: Csr, logarithms: Reals, counts: Reals, shape: Shape, documents: Csr, same: npt.NDArray[np.bool_]
) -> tuple[Reals, Reals]:
    """Return the gradient of the loss by g of each term of each query, (terms,), and by the shape, (3,)."""
    rows, sizes = _rows(queries), np.maximum(queries.getnnz(axis=1), 1)
    values = shape.values(logarithms, counts, rows)
    scale = TEMPERATURE * np.sqrt(sizes)[:, None]
    asked = sparse.csr_matrix((values, queries.indices, queries.indptr), shape=queries.shape)
    logits = (asked @ documents.T).toarray() / scale
    logits[same] = -np.inf
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    by_score = (powers / powers.sum(axis=1, keepdims=True) - np.eye(len(logits))) / (len(logits) * scale)
    by_logarithm = values * (by_score @ documents)[rows, queries.indices]
    deviations, stretch = shape.stretched(logarithms, rows)
    means = (np.bincount(rows, by_logarithm * stretch, minlength=len(sizes)) / sizes)[rows]
    longer = Shape.lengthened(sizes)[rows]
    by_shape = [by_logarithm @ np.log(counts), by_logarithm @ deviations, by_logarithm @ (deviations * longer)]
    return by_logarithm * (1 + stretch) - means, np.array(by_shape)


def _gate(pairs: _Pairs, trained: int, learned: _Learned, seed: int) -> TermGate:
    """Search the documents of the held-out pairs with each question, without the weights and with them."""
    documents = _by_text(pairs.documents, pairs.document_numbers)
    document_of = {number: row for row, number in enumerate(np.unique(pairs.document_numbers).tolist())}
    relevant: dict[int, set[str]] = {}
    first: dict[int, int] = {}
    for row, (query, document) in enumerate(
        zip(pairs.query_numbers.tolist(), pairs.document_numbers.tolist(), strict=True)
    ):
        relevant.setdefault(query, set()).add(str(document_of[document]))
        first.setdefault(query, row)
    queries = pairs.queries[list(first.values())]
    rarity = sparse.diags(_rarity(documents))

    def scores(of: _Learned) -> npt.NDArray[np.float64]:
        bm25_scores = (of.query_values(pairs, queries) @ rarity @ documents.T).toarray()
        best = np.argsort(-bm25_scores, axis=1, kind="stable")[:, :10]
        return np.array(ndcg_at_10(best.astype(str).tolist(), list(relevant.values())))

    before, after = scores(_Learned(np.zeros_like(learned.terms), Table(), Shape())), scores(learned)
    gain = estimate((after - before).tolist(), seed)
    return TermGate(trained, len(pairs), float(before.mean()), float(after.mean()), gain)
