"""A collection with everything that a copy can lose: both kinds of ids, dense, sparse and missing vectors, payloads."""

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import tune_embedded

DIM = 32
BATCH = 25
"""Points per request."""
Contents = Mapping[Any, tuple[dict[str, Any], dict[str, Any]]]
"""Id → payload and vectors by name; a sparse vector is a list of (index, value)."""


def make_collection(client: QdrantClient, name: str, points: int) -> None:
    """Create and fill a collection whose server accepts few points per request, so that kills fall between requests."""
    client.create_collection(
        name,
        vectors_config={
            "pair": models.VectorParams(size=DIM, distance=models.Distance.COSINE),
            "old": models.VectorParams(size=DIM, distance=models.Distance.EUCLID),
        },
        sparse_vectors_config={"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)},
        strict_mode_config=models.StrictModeConfig(enabled=True, upsert_max_batchsize=BATCH),
    )
    tune_embedded(client, name)
    Collection(client, name).write_contract("pair", VectorContract("a" * 64, "pair", DIM))
    write_points(client, name, range(points))


def write_points(client: QdrantClient, name: str, numbers: range, seed: int = 0) -> None:
    """Write points; another seed writes other content under the same ids."""
    for start in range(numbers.start, numbers.stop, BATCH):
        batch = [make_point(number, seed) for number in range(start, min(start + BATCH, numbers.stop))]
        client.upsert(name, batch, wait=True)


def read_contents(client: QdrantClient, name: str) -> Contents:
    """Return everything that a collection holds; nothing if the collection does not exist."""
    if not client.collection_exists(name):
        return {}
    records, _ = client.scroll(name, limit=1_000_000, with_payload=True, with_vectors=True)
    return {record.id: point_contents(record) for record in records}


def point_contents(point: models.Record | models.PointStruct) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return payload and vectors of a point, as read or as written."""
    return point.payload or {}, _numbers(point.vector)


def differing(found: Contents, wanted: Contents) -> int:
    """Count the points of ``found`` that are missing or different in ``wanted``."""
    return sum(key not in wanted or not _is_same(content, wanted[key]) for key, content in found.items())


def distance(found: Contents, wanted: Contents) -> int:
    """Count the points that are missing, additional or different."""
    return differing(found, wanted) + len(wanted.keys() - found.keys())


def make_point(number: int, seed: int) -> models.PointStruct:
    """Return a point whose id follows from the number, and its content from number and seed."""
    random = np.random.default_rng([number, seed])
    vectors: dict[str, Any] = {name: random.normal(size=DIM).astype(np.float32).tolist() for name in ("pair", "old")}
    vectors["bm25"] = models.SparseVector(indices=[number % 97, 100], values=[1.5, 0.25])
    if number % 5 == 0:
        del vectors["old"]
    return models.PointStruct(
        id=number if number % 2 else str(uuid.uuid5(uuid.NAMESPACE_URL, str(number))),
        vector=vectors,
        # An eighth is exact: JSON readers may change the last bit of other numbers.
        payload={"text": f"document {number} of seed {seed}", "nested": {"numbers": [number / 8, None]}},
    )


def _numbers(vectors: Any) -> dict[str, Any]:
    return {
        name: sorted(zip(vector.indices, vector.values, strict=True))
        if isinstance(vector, models.SparseVector)
        else _unit(vector)
        for name, vector in dict(vectors or {}).items()
    }


def _unit(vector: Any) -> Any:
    """Return the direction: a folder that is opened again returns lengths that a server does not keep."""
    row = np.asarray(vector)
    return row / np.linalg.norm(row)


def _is_same(one: tuple[dict[str, Any], dict[str, Any]], other: tuple[dict[str, Any], dict[str, Any]]) -> bool:
    if one[0] != other[0] or one[1].keys() != other[1].keys():
        return False
    return all(np.allclose(one[1][name], other[1][name], rtol=0, atol=1e-6) for name in one[1])
