"""Collections of every kind, in a folder and on a stand-in server."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client, tune_embedded
from tests.standin import StandIn
from tests.tiny import HashModel

DIM = 8
CONTRACT = VectorContract(fingerprint="a" * 64, model="pair", dim=DIM)
SPARSE_CONTRACT = SparseContract("zh-v1", k1=1.2, b=0.75, average_length=80.0)


def dense(distance: models.Distance = models.Distance.COSINE, **options: Any) -> models.VectorParams:
    return models.VectorParams(size=DIM, distance=distance, **options)


MULTI = dense(multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM))
IDF = {"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)}

SCHEMAS: dict[str, dict[str, Any]] = {
    "unnamed": {"vectors_config": dense()},
    "named": {"vectors_config": {"pair": dense()}},
    "unnamed-and-named": {"vectors_config": {"": dense(models.Distance.DOT), "pair": dense()}},
    "two-and-sparse": {
        "vectors_config": {"pair": dense(), "old": dense(models.Distance.EUCLID)},
        "sparse_vectors_config": IDF,
    },
    "multivector": {"vectors_config": {"pair": dense(), "late": MULTI}},
    "sparse-only": {"vectors_config": {}, "sparse_vectors_config": IDF},
}


def point(number: int, schema: dict[str, Any], seed: int = 0) -> models.PointStruct:
    """Return a point; every seventh lacks the vector that comes last, every fifth has no payload."""
    random = np.random.default_rng([number, seed])
    vectors: dict[str, Any] = {}
    config = schema["vectors_config"]
    for name, params in (config if isinstance(config, dict) else {"": config}).items():
        rows = random.normal(size=(3, DIM)).astype(np.float32).tolist()
        vectors[name] = rows if params.multivector_config else rows[0]
    for name in schema.get("sparse_vectors_config", {}):
        vectors[name] = models.SparseVector(indices=[number % 50 + 60, 3], values=[1.25, float(number)])
    if number % 7 == 3:
        vectors.popitem()
    payload = {
        "text": f"第 {number} 段：高血压患者",
        "doc_id": f"d{number}",
        "nested": {"list": [1, None, {"ä": 0.1 * number}], "empty": []},
        "score": number / 3,
    }
    identity: int | str = number if number % 2 else str(uuid.uuid5(uuid.NAMESPACE_URL, str(number)))
    return models.PointStruct(id=identity, vector=vectors, payload={} if number % 5 == 4 else payload)


def fill(client: QdrantClient, name: str, schema: dict[str, Any], count: int, *, contracts: bool = True) -> None:
    """Make a collection, with contracts where it has the vectors for them."""
    client.create_collection(name, **schema, metadata={"owner": "team"})
    tune_embedded(client, name)
    if contracts and "pair" in schema["vectors_config"]:
        Collection(client, name).write_contract("pair", CONTRACT)
    if contracts and "sparse_vectors_config" in schema:
        Collection(client, name).write_contract("bm25", SPARSE_CONTRACT)
    client.upsert(name, [point(number, schema) for number in range(count)], wait=True)


Contents = dict[Any, tuple[dict[str, Any], dict[str, Any]]]


def contents(client: QdrantClient, name: str) -> Contents:
    """Return id → payload and vectors; those under Cosine get length 1, which a reopened folder does not keep."""
    cosine = {
        key
        for key, params in Collection(client, name).schema.dense.items()
        if params.distance is models.Distance.COSINE
    }
    records, _ = client.scroll(name, limit=100_000, with_payload=True, with_vectors=True)
    return {record.id: (record.payload or {}, _vectors(record.vector, cosine)) for record in records}


def assert_same(found: Contents, wanted: Contents) -> None:
    """Everything is equal, but for the last bits of numbers that a Qdrant normalised twice, or read from JSON."""
    assert found.keys() == wanted.keys()
    for identity, (payload, vectors) in wanted.items():
        assert _rounded(found[identity][0]) == _rounded(payload)
        assert found[identity][1].keys() == vectors.keys()
        for name, vector in vectors.items():
            np.testing.assert_allclose(found[identity][1][name], vector, rtol=0, atol=2e-7)


def _rounded(payload: dict[str, Any]) -> Any:
    return json.loads(json.dumps(payload), parse_float=lambda number: float(f"{float(number):.14g}"))


def _vectors(vectors: Any, cosine: set[str]) -> dict[str, Any]:
    named = vectors if isinstance(vectors, dict) else {"": vectors} if vectors else {}
    return {name: _numbers(vector, name in cosine) for name, vector in named.items()}


def _numbers(vector: Any, is_direction: bool) -> Any:
    if isinstance(vector, models.SparseVector):
        return sorted(zip(vector.indices, vector.values, strict=True))
    rows = np.asarray(vector)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True) if is_direction else rows).tolist()


@pytest.fixture
def model() -> HashModel:
    return HashModel(name="care")


@pytest.fixture
def client(server: StandIn) -> Iterator[QdrantClient]:
    """A client of the server."""
    with open_client(url=server.url, timeout_seconds=5) as client:
        yield client


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[QdrantClient]:
    """An embedded database."""
    with open_client(path=tmp_path / "qdrant") as client:
        yield client
