"""Cheaper indexes in Qdrant's own engine, on clustered vectors."""

import numpy as np
import numpy.typing as npt
import pytest
from qdrant_client import QdrantClient

from benchmarks.experiments.index_variants import VARIANTS, Delta, Variant, measure_variants, read_vectors
from care_qdrant.index.ingest import ingest
from care_qdrant.index.settings import IngestSettings
from care_qdrant.types import Document, Vectors
from tests.tiny import TEXTS, HashModel

DOCUMENTS, DIM = 400, 64
NAMES = [f"d{number}" for number in range(DOCUMENTS)]


def unit(rows: npt.NDArray[np.float64]) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def clustered() -> tuple[Vectors, dict[str, npt.NDArray[np.float32]]]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, DIM))
    vectors = unit(centres[rng.integers(0, 20, DOCUMENTS)] + 0.5 * rng.normal(size=(DOCUMENTS, DIM)))
    asked = unit(vectors[:40] + 0.1 * rng.normal(size=(40, DIM)))
    return vectors, {f"q{number}": row for number, row in enumerate(asked)}


@pytest.fixture(scope="module")
def deltas() -> dict[str, Delta]:
    vectors, queries = clustered()
    qrels = {query: {f"d{number}": 1} for number, query in enumerate(queries)}
    return {d.variant: d for d in measure_variants("task", "nDCG@10", NAMES, vectors, queries, qrels)}


def test_every_variant_is_compared_with_exact_search(deltas: dict[str, Delta]) -> None:
    assert list(deltas) == [variant.name for variant in VARIANTS]
    assert {name: delta.bytes_per_vector for name, delta in deltas.items()} == {
        "HNSW, float32": 256,
        "HNSW, float16": 128,
        "HNSW, int8": 64,
        "HNSW, int8, 3× rescored": 64,
        "exact, first half of the dimensions": 128,
        "exact, first quarter of the dimensions": 64,
    }


def test_cheaper_means_further_from_exact(deltas: dict[str, Delta]) -> None:
    overlap = {name: delta.overlap_at_10 for name, delta in deltas.items()}
    assert overlap["HNSW, float32"] > 0.95
    assert overlap["HNSW, int8"] < overlap["HNSW, int8, 3× rescored"]
    quarter = overlap["exact, first quarter of the dimensions"]
    assert quarter < overlap["exact, first half of the dimensions"] < overlap["HNSW, int8"]


def test_fewer_dimensions_are_those_of_numpy() -> None:
    vectors, queries = clustered()
    half = Variant("half", dim_share=0.5, exact=True)
    qrels = {query: {f"d{number}": 1} for number, query in enumerate(queries)}
    [delta] = measure_variants("task", "RR@10", NAMES, vectors, queries, qrels, [half])
    short = unit(vectors[:, : DIM // 2].astype(np.float64))
    ranks = []
    for number, query in enumerate(queries.values()):
        scores = short @ query[: DIM // 2]
        rank = int((scores > scores[number]).sum()) + 1
        ranks.append(1 / rank if rank <= 10 else 0)
    assert delta.value == pytest.approx(np.mean(ranks), abs=1e-6)


def test_vectors_read_back_are_those_that_were_written(client: QdrantClient) -> None:
    model = HashModel()
    rows = [Document(f"d{number}", text) for number, text in enumerate(TEXTS)]
    ingest(rows, model, client, "c", settings=IngestSettings(overflow="truncate"))
    documents, vectors = read_vectors(client, "c", model.name)
    expected = dict(zip([row.id for row in rows], model.encode_document(TEXTS), strict=True))
    assert sorted(documents) == sorted(expected)
    for document, vector in zip(documents, vectors, strict=True):
        assert vector == pytest.approx(expected[document], abs=1e-6)
