"""Conditions on metadata, as a person writes them in a shell."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from care_qdrant.errors import InputError

if TYPE_CHECKING:
    from qdrant_client import models

_CONDITION = re.compile(r"(?P<key>[^=<>!]+)(?P<operator>>=|<=|!=|=|>|<)(?P<value>.*)", re.DOTALL)
_RANGES = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}


def parse_filter(conditions: Sequence[str]) -> "models.Filter | None":
    """Return the filter that all conditions make together; None for no condition.

    A condition is ``key=value``, ``key!=value`` or ``key>=value`` (also ``<=``, ``>``, ``<``, with a number). A value
    that reads as a JSON number or boolean is one; quoted, as ``code="017"``, it is a text.
    """
    from qdrant_client import models

    if not conditions:
        return None
    must: list[models.Condition] = []
    must_not: list[models.Condition] = []
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise InputError(f"condition {condition!r} (--filter): expected key=value, key!=value or key>=number")
        key, operator, value = match["key"].strip(), match["operator"], _value(match["value"].strip())
        if operator in _RANGES:
            if isinstance(value, bool | str):
                raise InputError(
                    f"condition {condition!r} (--filter): {operator} compares numbers, and {value!r} is none"
                )
            limits = models.Range(**{_RANGES[operator]: value})
            must.append(models.FieldCondition(key=key, range=limits))
        elif isinstance(value, float):
            raise InputError(
                f"condition {condition!r} (--filter): Qdrant matches integers and texts; use >= and <= for {value}"
            )
        else:
            side = must if operator == "=" else must_not
            side.append(models.FieldCondition(key=key, match=models.MatchValue(value=value)))
    return models.Filter(must=must or None, must_not=must_not or None)


def keys_of(conditions: "models.Filter") -> set[str]:
    """Return the payload keys that a filter asks for, those of nested filters included."""
    from qdrant_client import models

    found: set[str] = set()
    least = conditions.min_should.conditions if conditions.min_should else []
    for group in (conditions.must, conditions.must_not, conditions.should, least):
        for condition in group if isinstance(group, list) else [group]:
            if isinstance(condition, models.FieldCondition):
                found.add(condition.key)
            elif isinstance(condition, models.Filter):
                found |= keys_of(condition)
            elif isinstance(condition, models.NestedCondition):
                nested = condition.nested
                found |= {f"{nested.key}[].{key}" for key in keys_of(nested.filter)}
    return found


def _value(text: str) -> str | int | float | bool:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float) else text
