"""When two stored points count as one: what storage rounds is allowed, what anybody changed is not."""

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from qdrant_client import models

from care_qdrant.qdrant.point_equality import Measure, measures, same_point

VECTOR = np.random.default_rng(0).normal(size=64).astype(np.float32)
ROWS = VECTOR.reshape(4, 16)
COSINE = {"distance": models.Distance.COSINE}


def record(vector: Any = None, payload: dict[str, Any] | None = None) -> models.Record:
    return models.Record(id=1, vector=vector, payload=payload)


def same(one: Any, other: Any, **params: Any) -> bool:
    vector = models.VectorParams(**{"size": 64, "distance": models.Distance.EUCLID} | params)
    return same_point(record({"v": one}), record({"v": other}), measures({"v": vector}))


def sparse(indices: list[int], *values: float) -> models.SparseVector:
    return models.SparseVector(indices=indices, values=values)


@pytest.mark.parametrize(
    ("one", "other", "params", "equal"),
    [
        (VECTOR, VECTOR, {}, True),
        (VECTOR, VECTOR + 1e-3 * np.eye(64)[7], {}, False),
        (VECTOR, 2.5 * VECTOR, {}, False),
        (VECTOR, 2.5 * VECTOR, COSINE, True),
        (ROWS, ROWS * np.array([[1.0], [2.0], [3.0], [4.0]]), COSINE, True),
        (ROWS, ROWS[::-1], COSINE, False),
        (VECTOR, VECTOR.astype(np.float16), {"datatype": models.Datatype.FLOAT16}, True),
        (VECTOR, VECTOR.astype(np.float16), {}, False),
        (np.zeros(64), np.zeros(64), COSINE, True),
        (VECTOR, np.zeros(64), COSINE, False),
        (VECTOR, VECTOR[:32], {}, False),
        (sparse([9, 3], 0.5, 2.0), sparse([3, 9], 2.0, 0.5), {}, True),
        (sparse([9, 3], 0.5, 2.0), sparse([3, 9], 0.5, 2.0), {}, False),
        (sparse([9, 3], 0.5, 2.0), sparse([3], 2.0), {}, False),
    ],
)
def test_vectors(one: Any, other: Any, params: dict[str, Any], equal: bool) -> None:
    stored, read = (vector.tolist() if isinstance(vector, np.ndarray) else vector for vector in (one, other))
    assert same(stored, read, **params) is equal


def test_a_missing_vector_is_a_difference_and_none_is_like_an_empty_one() -> None:
    assert not same_point(record({"v": [1.0], "w": [1.0]}), record({"v": [1.0]}), {})
    assert same_point(record(None), record({}), {})
    assert same_point(record([1.0, 0.0]), record({"": [1.0, 0.0]}), {"": Measure()})


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (None, {}, True),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
        ({"a": [1, {"b": 1 / 3}]}, {"a": [1, {"b": 1 / 3 + 1e-17}]}, True),
        ({"a": 0.3}, {"a": 0.3000001}, False),
        ({"a": None}, {}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": "1"}, {"a": 1}, False),
    ],
)
def test_payloads(one: dict[str, Any] | None, other: dict[str, Any], equal: bool) -> None:
    assert same_point(record(payload=one), record(payload=other), {}) is equal


@pytest.mark.parametrize("number", [1, 1.0])
def test_true_is_not_one(number: float) -> None:
    """A filter on ``flag`` finds one of them only."""
    for stored in ({"flag": True}, {"flags": [True, "x"]}, {"deep": {"flag": True}}):
        text = json.dumps(stored).replace("true", str(number))
        one, other = (models.Record(id=1, payload=payload) for payload in (stored, json.loads(text)))
        assert not same_point(one, other, {})
        assert not same_point(other, one, {})
        assert same_point(one, one.model_copy(deep=True), {})
    assert same_point(models.Record(id=1, payload={"n": 1}), models.Record(id=1, payload={"n": 1.0}), {})


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(values)
@example(float("nan"))
def test_a_payload_is_the_same_as_its_copy(value: Any) -> None:
    """Also where the embedded database holds a number that JSON cannot: else no copy would ever be verified."""
    assert same_point(record(payload={"v": value}), record(payload={"v": deepcopy(value)}), {})
