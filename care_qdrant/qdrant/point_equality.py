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
"""Relative difference of numbers in payloads that JSON readers may cause, in the last bit."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Tolerance within which two dense vectors of one name count as equal."""

    rounding: float = ROUNDING
    is_direction: bool = False
    """Whether the length of the vectors is ignored."""
    # A server stores vectors for cosine with length 1. So does the embedded database while it is open; after it was
    # opened again, it returns them with the length that the user sent.


def measures(params: Mapping[str, models.VectorParams]) -> dict[str, Measure]:
    """Return the tolerance of each vector by name, from its distance and the datatype that stores it."""
    return {
        name: Measure(datatype_of(vector).rounding, vector.distance is models.Distance.COSINE)
        for name, vector in params.items()
    }


def same_point(first: models.Record, second: models.Record, dense: Mapping[str, Measure]) -> bool:
    """Return whether two records hold the same payload and vectors."""
    if not _same_value(first.payload or {}, second.payload or {}):
        return False
    these, those = vectors_of(first), vectors_of(second)
    return these.keys() == those.keys() and all(
        _same_vector(these[name], those[name], dense.get(name, Measure())) for name in these
    )


def vectors_of(record: models.Record) -> dict[str, Any]:
    """Return the vectors of a point by name; the unnamed one is ``""``, and a point may have none."""
    vectors = record.vector
    if isinstance(vectors, dict):
        return dict(vectors)
    return {"": vectors} if vectors else {}


def _same_vector(first: Any, second: Any, measure: Measure) -> bool:
    if isinstance(first, models.SparseVector) and isinstance(second, models.SparseVector):
        numbers = dict(zip(second.indices, second.values, strict=True))
        if set(first.indices) != numbers.keys():
            return False
        return _same_vector(first.values, [numbers[index] for index in first.indices], measure)
    if isinstance(first, models.SparseVector) or isinstance(second, models.SparseVector):
        return False
    these, those = _rows(first, measure), _rows(second, measure)
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


def _same_value(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal; True differs from 1, as in filters of Qdrant."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same_value(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same_value, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=_PAYLOAD_ROUNDING) or (math.isnan(first) and math.isnan(second))
    return bool(first == second)
