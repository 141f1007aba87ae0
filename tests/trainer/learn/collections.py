"""Collections as other tools write them, with the vectors of a made-up model that reads words."""

import random
from collections.abc import Iterable, Sequence

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.types import Vectors

DIM = 48
WORDS = [f"{first}{second}" for first in "心肝脾肺肾胃胆肠骨血" for second in "痛炎热寒虚实急慢肿癌"]


class WordModel:
    """A teacher: the sum of random word vectors, pulled towards one direction as real models are, then a tanh."""

    def __init__(self, seed: int = 0, dim: int = DIM) -> None:
        generator = np.random.default_rng(seed)
        self.words = {word: generator.normal(size=dim) for word in WORDS}
        self.common = generator.normal(size=dim) * 2

    def encode(self, texts: Sequence[str]) -> Vectors:
        unknown = np.zeros_like(self.common)
        sums = np.stack(
            [sum(self.words.get(text[at : at + 2], unknown) for at in range(0, len(text), 3)) for text in texts]
        )
        vectors = np.tanh((sums + self.common) / 3)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def word_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of eight words, four to a sentence."""
    generator = random.Random(seed)
    words = [generator.sample(WORDS, 8) for _ in range(count)]
    return ["。".join("，".join(text[at : at + 4]) for at in (0, 4)) for text in words]


def write_langchain(
    client: QdrantClient,
    texts: Sequence[str],
    vectors: Vectors,
    *,
    name: str = "articles",
    vector_name: str = "",
    distance: models.Distance = models.Distance.COSINE,
) -> None:
    """Write points in LangChain's layout: no metadata of ours, no contract."""
    params = models.VectorParams(size=vectors.shape[1], distance=distance)
    client.create_collection(name, {vector_name: params} if vector_name else params)
    add_points(client, range(len(texts)), texts, vectors, name=name, vector_name=vector_name)


def add_points(
    client: QdrantClient,
    numbers: Iterable[int],
    texts: Sequence[str],
    vectors: Vectors,
    *,
    name: str = "articles",
    vector_name: str = "",
) -> None:
    """Write points of such a collection, all at once."""
    points = [
        models.PointStruct(
            id=number,
            vector={vector_name: vector.tolist()} if vector_name else vector.tolist(),
            payload={"page_content": text, "metadata": {"source": f"{number}.txt"}},
        )
        for number, text, vector in zip(numbers, texts, vectors, strict=True)
    ]
    client.upsert(name, points, wait=True)
