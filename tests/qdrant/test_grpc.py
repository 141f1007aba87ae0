"""Requests over gRPC that are built here are those that qdrant-client builds."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import grpc as messages
from qdrant_client import models
from qdrant_client.conversions.conversion import RestToGrpc

from care_qdrant.qdrant.grpc import upsert_request, with_lists

IDS = st.uuids().map(str) | st.integers(0, 2**64 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
SPARSE = models.SparseVector(indices=[3, 7], values=[0.5, 1.25])


@given(
    identity=IDS,
    payload=st.none() | st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    dim=st.sampled_from([1, 31, 32, 768, 4_096]),
    has_sparse=st.booleans(),
)
def test_the_request_is_that_of_the_client(
    identity: int | str, payload: dict[str, Any] | None, dim: int, has_sparse: bool
) -> None:
    row = np.random.default_rng(dim).normal(size=dim).astype(np.float32)
    vector = {"care": row} | ({"bm25": SPARSE} if has_sparse else {})
    point = models.PointStruct.model_construct(id=identity, vector=vector, payload=payload)
    [plain] = with_lists([point])
    assert plain.vector == {**vector, "care": row.tolist()}
    expected = messages.UpsertPoints(collection_name="c", wait=True, points=[RestToGrpc.convert_point_struct(plain)])
    assert upsert_request("c", [point]) == expected


@pytest.mark.parametrize("vector", [[1.0, math.pi], {"": [1.0]}, {"many": [[1.0, 2.0]], "bm25": SPARSE}, {}])
def test_other_vectors_are_left_to_the_client(vector: Any) -> None:
    point = models.PointStruct(id=7, vector=vector, payload={"a": 1})
    assert with_lists([point]) == [point]
    assert list(upsert_request("c", [point]).points) == [RestToGrpc.convert_point_struct(point)]
