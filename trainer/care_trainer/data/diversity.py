"""Near-duplicates left out of pairs, queries and documents each on their own (arXiv 2604.10937, C.1, tables 10, 11).

A text is left out when more than a few texts that were kept are too similar to it. The paper's index returns five
neighbours of which one may be similar; counting all similar texts decides the same. Its index starts with 5,000
documents, ours is empty at first.
"""

from collections.abc import Iterator
from itertools import compress, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from care_qdrant.types import Vectors
from care_trainer.config import Data, Diversify
from care_trainer.data.read import Pair, iter_pairs

BATCH_PAIRS = 256
"""Pairs encoded at once."""
Flags = npt.NDArray[np.bool_]


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
    from sentence_transformers import SentenceTransformer

    from care_qdrant.model.hub import find_folder

    model = SentenceTransformer(str(find_folder(settings.encoder)))
    queries = Neighbourhood(settings.query_threshold, settings.neighbours)
    documents = Neighbourhood(settings.document_threshold, settings.neighbours)
    new_queries: list[bool] = []
    new_documents: list[bool] = []
    while batch := list(islice(pairs, BATCH_PAIRS)):
        asked, answers = map(list, zip(*batch, strict=True))
        vectors: Vectors = model.encode_query(asked, show_progress_bar=False, normalize_embeddings=True)
        new_queries += queries.add(asked, vectors)
        vectors = model.encode_document(answers, show_progress_bar=False, normalize_embeddings=True)
        new_documents += documents.add(answers, vectors)
    return np.array(new_queries, dtype=bool), np.array(new_documents, dtype=bool)


class Neighbourhood:
    """The texts that were kept, and whether another one is new among them."""

    def __init__(self, threshold: float, neighbours: int) -> None:
        self.threshold, self.neighbours = threshold, neighbours
        self._blocks: list[Vectors] = []
        self._verdicts: dict[int, bool] = {}

    def add(self, texts: list[str], vectors: Vectors) -> list[bool]:
        """Decide of each text whether it is kept; a repeated text gets the decision of its first time."""
        similar = sum(
            ((vectors @ block.T > self.threshold).sum(axis=1) for block in self._blocks), np.zeros(len(texts), np.int64)
        )
        among = vectors @ vectors.T > self.threshold
        kept: list[int] = []
        for row, text in enumerate(texts):
            if hash(text) not in self._verdicts:
                self._verdicts[hash(text)] = bool(similar[row] + among[row, kept].sum() <= self.neighbours)
                if self._verdicts[hash(text)]:
                    kept.append(row)
        self._blocks.append(vectors[kept])
        return [self._verdicts[hash(text)] for text in texts]
