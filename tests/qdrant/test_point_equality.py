"""When two stored points count as one: what storage rounds is allowed, what anybody changed is not."""

import json
from typing import Any

import numpy as np
import pytest
from qdrant_client import models

from care_qdrant.qdrant.point_equality import Measure, measures, same_point

VECTOR = np.random.default_rng(0).normal(size=64).astype(np.float32)


def record(vector: Any = None, payload: dict[str, Any] | None = None) -> models.Record:
    return models.Record(id=1, vector=vector, payload=payload)


def same(one: Any, other: Any, **params: Any) -> bool:
    vector = models.VectorParams(**{"size": 64, "distance": models.Distance.EUCLID} | params)
    return same_point(record({"v": one}), record({"v": other}), measures({"v": vector}))


def test_equal_vectors_are_the_same() -> None:
    assert same(VECTOR.tolist(), VECTOR.tolist())


def test_one_number_makes_a_difference() -> None:
    other = VECTOR.copy()
    other[7] += 1e-3
    assert not same(VECTOR.tolist(), other.tolist())


def test_a_length_counts_unless_the_distance_is_cosine() -> None:
    longer = (2.5 * VECTOR).tolist()
    assert not same(VECTOR.tolist(), longer)
    assert same(VECTOR.tolist(), longer, distance=models.Distance.COSINE)


def test_rows_of_a_multivector_have_their_own_length() -> None:
    rows = VECTOR.reshape(4, 16)
    longer = (rows * np.array([[1.0], [2.0], [3.0], [4.0]])).tolist()
    assert same(rows.tolist(), longer, distance=models.Distance.COSINE)
    assert not same(rows.tolist(), rows[::-1].tolist(), distance=models.Distance.COSINE)


def test_float16_is_allowed_only_where_the_collection_stores_it() -> None:
    coarse = VECTOR.astype(np.float16).tolist()
    assert same(VECTOR.tolist(), coarse, datatype=models.Datatype.FLOAT16)
    assert not same(VECTOR.tolist(), coarse)


def test_a_zero_vector_under_cosine_is_itself_only() -> None:
    zero = [0.0] * 64
    assert same(zero, zero, distance=models.Distance.COSINE)
    assert not same(VECTOR.tolist(), zero, distance=models.Distance.COSINE)


def test_another_dimension_is_another_vector() -> None:
    assert not same(VECTOR.tolist(), VECTOR[:32].tolist())


def test_sparse_vectors_are_the_same_in_any_order() -> None:
    one = models.SparseVector(indices=[9, 3], values=[0.5, 2.0])
    assert same(one, models.SparseVector(indices=[3, 9], values=[2.0, 0.5]))
    assert not same(one, models.SparseVector(indices=[3, 9], values=[0.5, 2.0]))
    assert not same(one, models.SparseVector(indices=[3], values=[2.0]))


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
