"""Conditions on metadata, as a person writes them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from care_qdrant.errors import InputError
from care_qdrant.types import RESERVED_KEYS

if TYPE_CHECKING:
    from qdrant_client import models

    from care_qdrant.qdrant.collection import Collection

_CONDITION = re.compile(r"(?P<key>[^=<>!]+)(?P<operator>>=|<=|!=|=|>|<)(?P<value>.*)", re.DOTALL)
_RANGES = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}
_OF_TEXTS, _OF_OTHERS = ("keyword", "uuid", "text"), ("integer", "bool")
"""Types of payload indexes that answer for one kind of value alone; in strict mode another kind is refused."""
_SAMPLE_POINTS = 100


def parse_filter(
    conditions: Sequence[str], indexes: "Mapping[str, models.PayloadIndexInfo] | None" = None
) -> "models.Filter | None":
    """Return the filter that all conditions make together; None for no condition.

    A condition is ``key=value``, ``key!=value`` or ``key>=value`` (also ``<=``, ``>``, ``<``, with a number). A value
    that reads as a JSON integer or boolean is that or the same text, as a table holds it (``year=2020``), unless a
    payload index of the key says which; quoted, as ``code="017"``, it is a text.
    """
    from qdrant_client import models

    if not conditions:
        return None
    must: list[models.Condition] = []
    must_not: list[models.Condition] = []
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise InputError(f"condition {condition!r}: expected key=value, key!=value or key>=number")
        key, operator, written = match["key"].strip(), match["operator"], match["value"].strip()
        value = _value(written)
        if operator in _RANGES:
            if isinstance(value, bool | str):
                raise InputError(f"condition {condition!r}: {operator} compares numbers, and {value!r} is none")
            limits = models.Range(**{_RANGES[operator]: value})
            must.append(models.FieldCondition(key=key, range=limits))
        elif isinstance(value, float):
            raise InputError(f"condition {condition!r}: Qdrant matches integers and texts; use >= and <= for {value}")
        else:
            kind = indexes[key].data_type.value if indexes and key in indexes else None
            values = [value, written]
            if isinstance(value, str) or kind in _OF_OTHERS:
                values = [value]
            elif kind in _OF_TEXTS:
                values = [written]
            each = [models.FieldCondition(key=key, match=models.MatchValue(value=one)) for one in values]
            if operator == "!=":
                must_not += each
            else:
                must += each if len(each) == 1 else [models.Filter(should=list(each))]
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


def why_nothing(collection: "Collection", conditions: "models.Filter") -> str | None:
    """Return why no point of a collection can pass `parse_filter`'s conditions; None where none says so by itself."""
    from qdrant_client import models

    sampled = [record.payload or {} for record in collection.sample(_SAMPLE_POINTS)]
    for key in sorted(keys_of(conditions)):
        has_key = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key=key))])
        if not collection.count(has_key):
            there = ", ".join(sorted({name for payload in sampled for name in payload} - RESERVED_KEYS)) or "none"
            return f"no point of {collection.name!r} has {key!r} (some keys: {there})"
    for condition in conditions.must if isinstance(conditions.must, list) else []:
        if isinstance(condition, models.FieldCondition) and _is_of_numbers(condition):
            values: list[Any] = [payload[condition.key] for payload in sampled if condition.key in payload]
            if values and all(isinstance(value, str) for value in values):
                return (
                    f"{condition.key!r} holds texts, as {values[0]!r}, and the condition compares numbers: JSON lines "
                    "and Parquet keep numbers, a CSV holds texts alone"
                )
    return None


def _is_of_numbers(condition: "models.FieldCondition") -> bool:
    """Return whether a text can never pass: an index for numbers may have made ``year=2020`` such a condition."""
    return condition.range is not None or isinstance(getattr(condition.match, "value", None), int)


def _value(text: str) -> str | int | float | bool:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float) else text
