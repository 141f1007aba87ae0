"""Cosines of rows, and of vectors that were cut the length as well."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from care_qdrant.encoders.agreement import LEAST_OLD_MODEL, cosines, projections
from care_qdrant.types import Vectors

ROWS = arrays(np.float32, (4, 6), elements=st.floats(-100, 100, width=32))


@given(ROWS, ROWS)
def test_cosines_are_those_of_each_row_alone(found: Vectors, expected: Vectors) -> None:
    for cosine, one, other in zip(cosines(found, expected), found.astype(float), expected.astype(float), strict=True):
        length = np.linalg.norm(one) * np.linalg.norm(other)
        if length > 1e-6:
            assert cosine == pytest.approx(one @ other / length, abs=1e-4)


@pytest.mark.parametrize("row", [[0.0, 0.0], [np.nan, 1.0]], ids=["no length", "not a number"])
def test_a_row_that_is_no_vector_agrees_with_nothing(row: list[float]) -> None:
    (cosine,) = cosines(np.array([row], np.float32), np.array([[1.0, 0.0]], np.float32))
    assert not cosine >= LEAST_OLD_MODEL


@given(st.floats(0.1, 0.9))
def test_a_vector_of_another_length_is_another_projection_of_the_same_cosine(length: float) -> None:
    row = np.array([[0.6, 0.8]], np.float32)
    assert projections(row * np.float32(length), row) == pytest.approx(length, rel=1e-5)
    assert cosines(row * np.float32(length), row) == pytest.approx(1.0, rel=1e-5)
