"""Refusals before training that docs/how-to/learn.md lists, at 256 and at 1,024 dimensions, also on a real server."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.reading import read_pairs
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError, SchemaMismatch
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Vectors
from tests.trainer.learn.collections import WordModel, write_langchain
from tests.trainer.learn.conftest import SETTINGS, TEXTS


def shuffled(dim: int) -> Vectors:
    return WordModel(dim=dim).encode(TEXTS)[np.random.default_rng(1).permutation(len(TEXTS))]


def half_shuffled(dim: int) -> Vectors:
    vectors, generator = WordModel(dim=dim).encode(TEXTS), np.random.default_rng(1)
    half = generator.permutation(len(TEXTS))[: len(TEXTS) // 2]
    vectors[half] = vectors[generator.permutation(half)]
    return vectors


def two_models(dim: int) -> Vectors:
    vectors = WordModel(dim=dim).encode(TEXTS)
    vectors[::3] = WordModel(seed=9, dim=dim).encode(TEXTS)[::3]
    return vectors


def two_spaces(dim: int) -> Vectors:
    """Every second vector in another space, without a common direction, so that no groups tell the models apart."""
    vectors = WordModel(dim=dim).encode(TEXTS)
    vectors -= vectors.mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(dim, dim)))[0]
    vectors[::2] = vectors[::2] @ rotation.astype(np.float32)
    return vectors


def constant(dim: int) -> Vectors:
    return np.ones((len(TEXTS), dim), np.float32)


CASES: dict[str, tuple[list[str], Callable[[int], Vectors], str]] = {
    "shuffled": (TEXTS, shuffled, "shuffled"),
    "half shuffled": (TEXTS, half_shuffled, "or vectors belong to other texts"),
    "two models": (TEXTS, two_models, "two models wrote under one name"),
    "two spaces": (TEXTS, two_spaces, "two models wrote under one name"),
    "constant": (TEXTS, constant, "all stored vectors are the same"),
    "few points": (TEXTS[:10], lambda dim: WordModel(dim=dim).encode(TEXTS[:10]), "has 10 points.*at least 200"),
    "few texts": (
        TEXTS[:10] * 25,
        lambda dim: WordModel(dim=dim).encode(TEXTS[:10] * 25),
        "has 10 different texts.*240 repeated.*at least 200",
    ),
    "no letters": (
        ["…" * (n + 1) for n in range(300)],
        lambda dim: WordModel(dim=dim).encode(TEXTS[:300]),
        "neither letters nor digits",
    ),
}


@pytest.mark.parametrize("dim", [256, 1024])
@pytest.mark.parametrize("case", CASES)
def test_pairs_that_nothing_can_be_learned_from(client: QdrantClient, case: str, dim: int, tmp_path: Path) -> None:
    texts, make, message = CASES[case]
    write_langchain(client, texts, make(dim))
    with pytest.raises(InputError, match=message):
        report = learn(client, "articles", tmp_path / "queries", settings=SETTINGS)
        raise InputError(report.refused or "not refused")
    assert not Collection(client, "articles").schema.learned


@pytest.mark.parametrize("dim", [256, 1024])
def test_lengths_that_euclidean_distance_compares(client: QdrantClient, dim: int, tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).uniform(1, 3, size=(len(TEXTS), 1)).astype(np.float32)
    vectors = WordModel(dim=dim).encode(TEXTS) * lengths
    write_langchain(client, TEXTS, vectors, distance=models.Distance.EUCLID)
    with pytest.raises(SchemaMismatch, match="its lengths differ by"):
        learn(client, "articles", tmp_path / "queries", settings=SETTINGS)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (models.VectorParams(size=1024, distance=models.Distance.MANHATTAN), "Manhattan"),
        (
            models.VectorParams(
                size=1024,
                distance=models.Distance.COSINE,
                multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            ),
            "several vectors",
        ),
    ],
    ids=["manhattan", "multivector"],
)
def test_vectors_that_are_compared_otherwise(
    client: QdrantClient, params: models.VectorParams, message: str, tmp_path: Path
) -> None:
    client.create_collection("articles", params)
    vectors = WordModel(dim=1024).encode(TEXTS).tolist()
    points = [
        models.PointStruct(
            id=n, vector=[vectors[n]] if params.multivector_config else vectors[n], payload={"text": text}
        )
        for n, text in enumerate(TEXTS)
    ]
    client.upload_points("articles", points, wait=True)
    with pytest.raises((InputError, SchemaMismatch), match=message):
        learn(client, "articles", tmp_path / "queries", settings=SETTINGS)


def test_no_texts(client: QdrantClient, tmp_path: Path) -> None:
    client.create_collection("articles", models.VectorParams(size=1024, distance=models.Distance.COSINE))
    vectors = WordModel(dim=1024).encode(TEXTS[:300])
    points = [models.PointStruct(id=n, vector=row.tolist(), payload={"n": n}) for n, row in enumerate(vectors)]
    client.upload_points("articles", points, wait=True)
    with pytest.raises(InputError, match="none of 256 sampled payloads has a text"):
        learn(client, "articles", tmp_path / "queries", settings=SETTINGS)


def test_texts_that_no_tokenizer_reads_are_left_out() -> None:
    client, halves = QdrantClient(":memory:"), [text + "\ud800" for text in TEXTS[:5]]
    write_langchain(client, [*halves, *TEXTS[5:300]], WordModel().encode(TEXTS[:300]))
    pairs = read_pairs(Collection(client, "articles").resolve(), "", SETTINGS)
    assert (pairs.sample.without_text, pairs.sample.texts) == (5, 295)
    assert set(pairs.texts) == set(TEXTS[5:300])
