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

    Raises:
        InputError: A condition cannot be read.
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


def _value(text: str) -> str | int | float | bool:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float) else text
