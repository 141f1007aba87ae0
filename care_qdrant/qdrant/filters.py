"""The conditions on payload keys in a filter of Qdrant, at any depth."""

import math
from collections.abc import Iterator

from qdrant_client import models

from care_qdrant.errors import InputError


def field_conditions(where: models.Filter) -> Iterator[tuple[str, models.FieldCondition]]:
    """Yield each condition on a payload key with the key, in which ``[]`` stands for the items of a nested condition.

    Those of nested filters, of ``must_not``, ``should`` and ``min_should`` are among them.
    """
    least = where.min_should.conditions if where.min_should else []
    for group in (where.must, where.must_not, where.should, least):
        for condition in group if isinstance(group, list) else [group]:
            if isinstance(condition, models.FieldCondition):
                yield condition.key, condition
            elif isinstance(condition, models.Filter):
                yield from field_conditions(condition)
            elif isinstance(condition, models.NestedCondition):
                nested = condition.nested
                yield from ((f"{nested.key}[].{key}", inner) for key, inner in field_conditions(nested.filter))


def require_finite(where: models.Filter | None) -> None:
    """Refuse a filter with NaN or an infinite number: JSON has none, so a server would get no bound in its place.

    Raises:
        InputError: A range or an area of the filter is not of finite numbers.
    """
    for key, condition in () if where is None else field_conditions(where):
        bounds = [condition.range, condition.geo_radius, condition.geo_bounding_box, condition.geo_polygon]
        if not all(map(_is_finite, (bound.model_dump() for bound in bounds if bound is not None))):
            raise InputError(
                f"filter: the condition on {key!r} holds NaN or an infinite number; give a finite one, or leave the "
                "bound out"
            )


def _is_finite(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)
