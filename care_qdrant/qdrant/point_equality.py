"""Equality of stored points: the same payload, the same vectors by name, the same numbers up to rounding."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from qdrant_client import models

from care_qdrant.qdrant.quantization import DATATYPES
from care_qdrant.qdrant.schema import datatype_of

ROUNDING = DATATYPES["float32"].rounding
_PAYLOAD_ROUNDING = 1e-12
"""Relative difference of numbers in payloads that JSON readers may make, in the last bit."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Tolerance by which two dense vectors of one name count as equal."""

    rounding: float = ROUNDING
    is_direction: bool = False
    """Whether the length of the vectors is ignored."""
    # A server stores vectors for cosine with length 1. The embedded database returns them so while it is open, and
    # with the length that the user sent after it was opened again.


def measures(params: Mapping[str, models.VectorParams]) -> dict[str, Measure]:
    """Return when vectors count as equal, by their name: by the distance, and by the datatype that stores them."""
    return {
        name: Measure(datatype_of(vector).rounding, vector.distance is models.Distance.COSINE)
        for name, vector in params.items()
    }


def same_point(one: models.Record, other: models.Record, dense: Mapping[str, Measure]) -> bool:
    """Return whether two records hold the same payload and vectors."""
    if not _same_value(one.payload or {}, other.payload or {}):
        return False
    these, those = vectors_of(one), vectors_of(other)
    return these.keys() == those.keys() and all(
        _same_vector(these[name], those[name], dense.get(name, Measure())) for name in these
    )


def vectors_of(record: models.Record) -> dict[str, Any]:
    """Return the vectors of a point by name; the unnamed one is ``""``, and a point may have none."""
    vectors = record.vector
    if isinstance(vectors, dict):
        return dict(vectors)
    return {"": vectors} if vectors else {}


def _same_vector(one: Any, other: Any, measure: Measure) -> bool:
    if isinstance(one, models.SparseVector) and isinstance(other, models.SparseVector):
        numbers = dict(zip(other.indices, other.values, strict=True))
        if set(one.indices) != numbers.keys():
            return False
        return _same_vector(one.values, [numbers[index] for index in one.indices], measure)
    if isinstance(one, models.SparseVector) or isinstance(other, models.SparseVector):
        return False
    these, those = _rows(one, measure), _rows(other, measure)
    if these.shape != those.shape:
        return False
    largest = float(np.abs(these).max(initial=0.0))
    return np.allclose(these, those, rtol=measure.rounding, atol=measure.rounding * largest)


def _rows(vector: Any, measure: Measure) -> npt.NDArray[np.float64]:
    """Return a dense vector, or the rows of a multivector."""
    rows = np.asarray(vector, dtype=np.float64)
    if not measure.is_direction:
        return rows
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def _same_value(one: Any, other: Any) -> bool:
    """Return whether two JSON values are one; True is not 1, which a filter of Qdrant tells apart."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same_value(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_value, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_PAYLOAD_ROUNDING)
    return bool(one == other)
