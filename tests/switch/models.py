"""Models of known order: tables of random token vectors, whose texts are the sums of their words."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.types import Vectors
from tests.tiny import HashEncoder, HashModel

NAME = "articles"
WORDS = [f"词{number:03d}" for number in range(400)]


class TableEncoder(HashEncoder):
    """The sum of the vectors of a text's words; ``keep`` of their coordinates, some of them permuted or rounded."""

    def __init__(self, table: Vectors) -> None:
        super().__init__(table.shape[1], max_tokens=512)
        self._table = table

    def _row(self, text: str) -> Vectors:
        words = [int(word[1:4]) for word in text.replace("。", " ").replace("？", " ").split() if word[1:4].isdigit()]
        row = self._table[words].sum(axis=0) if words else self._table[0]
        return np.asarray(row / np.linalg.norm(row), np.float32)


class TableModel(HashModel):
    """Queries and documents by tables of their own."""

    def __init__(self, name: str, document: Vectors, query: Vectors | None = None) -> None:
        super().__init__(document.shape[1], name, salt=name)
        self._encoder = TableEncoder(document)
        self._queries = self._encoder if query is None else TableEncoder(query)

    @property
    def query_encoder(self) -> HashEncoder:
        return self._queries


def table(seed: int, dim: int = 96) -> Vectors:
    return np.random.default_rng(seed).normal(size=(len(WORDS), dim)).astype(np.float32)


def good(name: str, seed: int = 0) -> TableModel:
    return TableModel(name, table(seed))


def weaker(name: str, seed: int = 0, noise: float = 1.0) -> TableModel:
    """Its queries are those of another table by a part."""
    return TableModel(name, table(seed), table(seed) + noise * table(seed + 100))


def permuted(name: str, seed: int = 0, share: float = 0.5) -> TableModel:
    """Some words of a query mean other words."""
    rows, generator = np.arange(len(WORDS)), np.random.default_rng(seed)
    some = generator.choice(len(WORDS), int(share * len(WORDS)), replace=False)
    rows[some] = generator.permutation(some)
    return TableModel(name, table(seed), table(seed)[rows])


def narrow(name: str, seed: int = 0, dim: int = 6) -> TableModel:
    return TableModel(name, table(seed, dim))


def rounded(name: str, seed: int = 0) -> TableModel:
    """The same in 8 bits."""
    rows = table(seed)
    scale = np.abs(rows).max() / 127
    return TableModel(name, table(seed), (np.round(rows / scale) * scale).astype(np.float32))


def texts(count: int, seed: int = 0) -> list[str]:
    """Return texts that begin with a sentence of a few of their words, shared with other texts."""
    generator, made = random.Random(seed), set[str]()
    while len(made) < count:
        words = generator.sample(WORDS, 14)
        made.add(f"{' '.join(words[:3])}。{' '.join(words[3:] + words[:1])}")
    return sorted(made)


def fill(client: QdrantClient, model: Any, count: int = 300) -> list[str]:
    """Make a collection whose documents another tool wrote, with the record of a model."""
    from care_qdrant.contracts.contract import contract_metadata

    client.create_collection(
        NAME,
        vectors_config={model.name: model.contract().params},
        metadata=contract_metadata(model.name, model.contract()),
    )
    rows = texts(count)
    points = [
        models.PointStruct(id=number, vector={model.name: vector}, payload={"text": text, "doc_id": f"d{number}"})
        for number, (text, vector) in enumerate(zip(rows, model.encode_document(rows).tolist(), strict=True))
    ]
    client.upsert(NAME, points, wait=True)
    return rows


def brute_force(model: Any, queries: Sequence[str], documents: Sequence[str]) -> Vectors:
    """Return the scores of queries with documents by one model."""
    return np.asarray(model.encode_query(queries) @ model.encode_document(documents).T)
