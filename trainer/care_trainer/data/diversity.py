"""Leaves near-duplicates out of pairs, queries and documents separately (arXiv 2604.10937, C.1, tables 10, 11).

A text is left out when more than a few texts that were kept are too similar to it. The paper's index returns five
neighbours, and one of them may be similar; counting all similar texts decides the same. The index of a run is in
memory.
"""

from collections.abc import Iterator
from itertools import compress, islice
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Vectors
from care_trainer.config import Data, Diversify
from care_trainer.data.read import Pair, iter_pairs

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
BATCH_ROWS = 256
"""Pairs that are encoded at once."""


def diverse_pairs(data: Data, root: Path) -> Iterator[Pair]:
    """Yield the pairs of a data set, each once, without those that its ``diversify`` leaves out."""
    if data.diversify is None:
        yield from iter_pairs(data, root)
    else:
        asked = ((pair.query, pair.positive) for pair in iter_pairs(data, root))
        yield from compress(iter_pairs(data, root), diverse(data.diversify, asked))


def diverse(settings: Diversify, pairs: Iterator[tuple[str, str]]) -> Flags:
    """Return for each pair whether it stays; without a side, as many stay as with both, from all over the data."""
    new_queries, new_documents = _new_texts(settings, pairs)
    both = new_queries & new_documents
    candidates = {"both": both, "query": new_queries, "none": np.ones_like(both)}[settings.sides]
    rows = np.flatnonzero(candidates)
    kept = np.zeros_like(both)
    kept[rows[np.linspace(0, len(rows) - 1, int(both.sum())).astype(np.int64)]] = True
    return kept


def _new_texts(settings: Diversify, pairs: Iterator[tuple[str, str]]) -> tuple[Flags, Flags]:
    model = CareModel.load(settings.encoder)
    queries = Neighbourhood(settings.query_threshold, settings.neighbours)
    documents = Neighbourhood(settings.document_threshold, settings.neighbours)
    new_queries: list[bool] = []
    new_documents: list[bool] = []
    while batch := list(islice(pairs, BATCH_ROWS)):
        asked, answers = map(list, zip(*batch, strict=True))
        new_queries += queries.add(asked, model.encode_query(asked))
        new_documents += documents.add(answers, model.encode_document(answers))
    return np.array(new_queries, dtype=bool), np.array(new_documents, dtype=bool)


class Index(Protocol):
    """The vectors of the texts that were kept."""

    def similar(self, vectors: Vectors, threshold: float) -> Counts:
        """Return how many kept vectors are more similar to each of ``vectors``, (n,); an index may stop counting."""

    def insert(self, vectors: Vectors) -> None:
        """Keep more vectors."""


class Blocks:
    """An index in memory, which counts all."""

    def __init__(self) -> None:
        self._blocks: list[Vectors] = []

    def similar(self, vectors: Vectors, threshold: float) -> Counts:
        """Count all similar vectors."""
        counts = ((vectors @ block.T > threshold).sum(axis=1) for block in self._blocks)
        return sum(counts, np.zeros(len(vectors), np.int64))

    def insert(self, vectors: Vectors) -> None:
        """Keep more vectors."""
        self._blocks.append(vectors)


class Neighbourhood:
    """The texts that were kept, and whether another one is new among them."""

    def __init__(self, threshold: float, neighbours: int, index: Index | None = None) -> None:
        self.threshold, self.neighbours = threshold, neighbours
        self._index, self._verdicts = index or Blocks(), dict[int, bool]()

    def add(self, texts: list[str], vectors: Vectors) -> list[bool]:
        """Return whether each text is kept; a repeated text gets the decision of its first occurrence."""
        keys = list(map(hash, texts))
        new = [row for row, key in enumerate(keys) if key not in self._verdicts and keys.index(key) == row]
        self._verdicts |= {keys[row]: kept for row, kept in zip(new, self.decide(vectors[new]), strict=True)}
        return [self._verdicts[key] for key in keys]

    def decide(self, vectors: Vectors) -> list[bool]:
        """Return in turn whether each vector is kept, and add the kept ones to the index."""
        similar, among = self._index.similar(vectors, self.threshold), vectors @ vectors.T > self.threshold
        kept: list[int] = []
        for row in range(len(vectors)):
            if similar[row] + among[row, kept].sum() <= self.neighbours:
                kept.append(row)
        self._index.insert(vectors[kept])
        return [bool(is_kept) for is_kept in np.isin(np.arange(len(vectors)), kept)]
