"""Requests over HTTP that are built here hold what qdrant-client would send."""

import json
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from qdrant_client import QdrantClient, models
from qdrant_client.http.api.points_api import jsonable_encoder

from care_qdrant.qdrant.rest import upsert, upsert_body, with_lists
from tests.standin import StandIn

IDS = st.uuids().map(str) | st.integers(0, 2**64 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
SPARSE = models.SparseVector(indices=[3, 7], values=[0.5, 1.25])


def sent_by_the_client(points: list[models.PointStruct], shard_key: str | None = None) -> Any:
    return json.loads(jsonable_encoder(models.PointsList(points=points, shard_key=shard_key)))


@given(
    identity=IDS,
    payload=st.none() | st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    dim=st.sampled_from([1, 31, 32, 768, 4_096]),
    has_sparse=st.booleans(),
    shard_key=st.none() | st.text(min_size=1, max_size=4),
)
def test_the_request_is_that_of_the_client(
    identity: int | str, payload: dict[str, Any] | None, dim: int, has_sparse: bool, shard_key: str | None
) -> None:
    row = np.random.default_rng(dim).normal(size=dim).astype(np.float32)
    vector = {"care": row} | ({"bm25": SPARSE} if has_sparse else {})
    point = models.PointStruct.model_construct(id=identity, vector=vector, payload=payload)
    ours, theirs = json.loads(upsert_body([point], shard_key)), sent_by_the_client(with_lists([point]), shard_key)
    sent = ours["points"][0]["vector"].pop("care"), theirs["points"][0]["vector"].pop("care")
    np.testing.assert_array_equal(*(np.array(numbers, np.float32) for numbers in sent))
    assert ours == theirs


@given(arrays.arrays(np.float32, 8, elements=st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_no_bit_of_a_vector_is_lost(row: np.ndarray) -> None:
    point = models.PointStruct.model_construct(id=1, vector={"care": row}, payload=None)
    [sent] = json.loads(upsert_body([point]))["points"]
    np.testing.assert_array_equal(np.array(sent["vector"]["care"]).astype(np.float32), row)


@pytest.mark.parametrize("vector", [[1.0, 0.5], {"": [1.0]}, {"many": [[1.0, 2.0]], "bm25": SPARSE}, {}])
def test_other_vectors_are_sent_as_they_are(vector: Any) -> None:
    point = models.PointStruct(id=7, vector=vector, payload={"a": 1})
    assert json.loads(upsert_body([point])) == sent_by_the_client([point])
    assert with_lists([point]) == [point]


def test_values_of_python_are_written_as_the_client_writes_them() -> None:
    class Name(str):
        __slots__ = ()

    payload = {
        "time": datetime(2026, 11, 26, 21, 30, 0, 250, tzinfo=UTC),
        "local": datetime(2026, 11, 26, 21, 30),
        "day": date(2026, 11, 26),
        "id": UUID(int=7),
        "name": Name("a"),
        "model": SPARSE,
        "none": None,
        "infinite": float("inf"),
    }
    point = models.PointStruct(id=7, vector={}, payload=payload)
    assert json.loads(upsert_body([point])) == sent_by_the_client([point])


def test_what_this_json_cannot_hold_is_left_to_the_client(server: StandIn) -> None:
    client = QdrantClient(url=server.url, check_compatibility=False)
    client.create_collection("c", {"care": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    row = np.array([0.6, 0.8], np.float32)
    point = models.PointStruct.model_construct(id=1, vector={"care": row}, payload={"many": 2**70})
    assert upsert(client, "c", [point])
    [stored] = client.retrieve("c", [1], with_vectors=True)
    assert stored.payload and float(stored.payload["many"]) == pytest.approx(2.0**70, rel=1e-15)  # a server's last bit
    np.testing.assert_allclose(stored.vector["care"], row)  # type: ignore[call-overload,index]
    client.close()
