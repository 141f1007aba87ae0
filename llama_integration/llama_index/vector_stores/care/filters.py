"""LlamaIndex's metadata filters as Qdrant conditions, with the meaning that LlamaIndex gives them.

Each filter becomes one `Comparison`, which the core puts into Qdrant's words. The stock store lets NE and NIN miss
points that lack the key (LlamaIndex counts them as different), knows no CONTAINS, ANY and ALL, lets a list of node ids
widen an OR filter where it should narrow it, takes 2 for another number than a stored 2.0 and 1 for another value than
a stored true (a filter of LlamaIndex holds no booleans), takes a dot in a key for nesting, and drops all of these
filters where ``qdrant_filters=`` is given.

Two operators work as in Qdrant. TEXT_MATCH, with case or without, matches words in any case if there is a full-text
index. Without one it looks for a part of the text, TEXT_MATCH_INSENSITIVE in the usual spellings (covid, COVID, Covid).
CONTAINS looks into arrays and not into strings.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.vector_stores.care.once import OnceLogger
from llama_index.vector_stores.care.points import require_list, written_number
from qdrant_client import models

from care_qdrant import Collection
from care_qdrant.contracts.layouts import Layout
from care_qdrant.errors import InputError
from care_qdrant.search.conditions import (
    BOUNDS,
    Comparison,
    Condition,
    Keys,
    at_first,
    no_such_key,
)

logger = logging.getLogger(__name__)

Value = str | int | float
DOCUMENT_ID_KEY = "doc_id"
_INTEGERS = 2**63
_PASSING_WITHOUT = (FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY)
"""Operators that points without the key pass."""
_FOR_EQUAL = (
    FilterOperator.EQ,
    FilterOperator.NE,
    FilterOperator.IN,
    FilterOperator.NIN,
    FilterOperator.ANY,
    FilterOperator.ALL,
    FilterOperator.CONTAINS,
)
"""Operators that look for values equal to the filter's values."""
_FOR_PART = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)
"""Operators that look for a part of a text."""
_COMPARISONS: dict[FilterOperator, str] = {
    FilterOperator.ALL: "all",
    FilterOperator.TEXT_MATCH: "part",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "part in any case",
    FilterOperator.IS_EMPTY: "empty",
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
}
"""Operators of `Comparison`; all others are ``any``."""
_ONE_VALUE = (FilterOperator.EQ, *(operator for operator in FilterOperator if operator.value in BOUNDS))


def metadata_conditions(
    filters: MetadataFilters | None, collection: Collection, keys: Callable[[], Keys], warnings: OnceLogger
) -> list[models.Condition]:
    """Return the conditions of metadata filters, and warn once of each filter that misses the stored values.

    Args:
        filters: The filters; None, and groups without a filter, let every point pass.
        collection: The collection that is searched.
        keys: Returns the keys of its payloads; called only if there is a filter.
        warnings: Warnings that were logged.
    """
    if filters is None or not has_filters(filters):
        return []
    known = keys()
    _warn_of_filters(filters, collection, known, warnings)
    return [build_filter(filters, known)]


def document_filter(document_ids: Sequence[str], layout: Layout | None, *, to_delete: bool = False) -> models.Filter:
    """Return the filter of points whose document has one of the ids, by the first path that exists.

    Args:
        document_ids: Ids of documents, as nodes have them in ``ref_doc_id``.
        layout: Layout of the payloads.
        to_delete: Leave out the paths that may hold something else than an id, such as LangChain's ``source``.
    """
    require_list("document ids", document_ids)
    paths, are_texts = [DOCUMENT_ID_KEY], True
    if layout is not None and layout.tool not in ("care", "llama-index"):
        # Last, the key of our own `add`: points of several tools can be in one collection.
        known = layout.certain_paths if to_delete else layout.document_paths
        paths, are_texts = list(dict.fromkeys([*known, DOCUMENT_ID_KEY])), False
    matches = [models.MatchAny(any=list(document_ids))]
    # A node has the id as a text, other tools may have stored it as a number.
    written = map(written_number, document_ids)
    numbers = [number for number in written if number is not None and number < _INTEGERS]
    if numbers and not are_texts:
        matches.append(models.MatchAny(any=numbers))

    def condition(path: str) -> models.Condition:
        fields = [models.FieldCondition(key=path, match=match) for match in matches]
        return fields[0] if len(fields) == 1 else models.Filter(should=list(fields))

    return models.Filter(must=[at_first(paths, condition)])


def build_filter(filters: MetadataFilters, keys: Keys) -> models.Filter:
    """Translate filters, including nested ones; empty groups are left out."""
    conditions = [
        build_filter(part, keys) if isinstance(part, MetadataFilters) else _condition(part, keys)
        for part in filters.filters
        if not _is_empty(part)
    ]
    match filters.condition:
        case FilterCondition.OR:
            return models.Filter(should=conditions)
        case FilterCondition.NOT:
            return models.Filter(must_not=conditions)
        case _:
            return models.Filter(must=conditions)


def has_filters(filters: MetadataFilters | None) -> bool:
    """Return whether there is a filter in a group or in the groups inside it.

    Raises:
        InputError: The group is not one of LlamaIndex's.
    """
    if filters is not None and not isinstance(filters, MetadataFilters):
        raise InputError(
            f"filters= is a {type(filters).__name__}; expected MetadataFilters(filters=[MetadataFilter(...)]). "
            "A query takes filters of Qdrant as qdrant_filters="
        )
    return not _is_empty(filters)


def _is_empty(part: MetadataFilter | MetadataFilters | None) -> bool:
    return part is None or (isinstance(part, MetadataFilters) and all(map(_is_empty, part.filters)))


def _each(filters: MetadataFilters, *, negated: bool = False) -> Iterator[tuple[MetadataFilter, bool]]:
    """Yield each filter of a group and of the groups inside it, and whether an odd number of NOT is around it."""
    negated ^= filters.condition is FilterCondition.NOT
    for part in filters.filters:
        if isinstance(part, MetadataFilters):
            yield from _each(part, negated=negated)
        else:
            yield part, negated


def _passing_without(filters: MetadataFilters) -> list[MetadataFilter]:
    """Return the filters that points without their key pass: all points if no point has the key."""
    return [
        part
        for part, negated in _each(filters)
        if negated ^ (part.operator in _PASSING_WITHOUT or (part.operator is FilterOperator.ALL and not _values(part)))
    ]


def _writes_number(part: MetadataFilter) -> bool:
    """Return whether a filter for equal values looks for a text that writes a number or a boolean."""
    return part.operator in _FOR_EQUAL and any(
        isinstance(text, str) and not isinstance(Condition(part.key, "=", text).value, str) for text in _values(part)
    )


def _warn_of_filters(filters: MetadataFilters, collection: Collection, keys: Keys, warnings: OnceLogger) -> None:
    """Warn once of each key that no point has, or that has numbers while a filter compares with a text."""
    for part in _passing_without(filters):
        subject = f"key {part.key}"
        if not warnings.has_warned(subject) and not keys.has(collection, part.key):
            reason = no_such_key(collection, part.key)
            warnings.warn(subject, "%s: a filter on it with %s passes every point", reason, part.operator.value)
    for part, _ in _each(filters):
        if (
            _writes_number(part)
            and warnings.is_first(f"number {part.key}")
            and _has_numbers(collection, keys, part.key)
        ):
            logger.warning(
                "collection %r: a filter compares %r with %r, a text, but points have numbers or booleans there, "
                "which are other values to LlamaIndex: give a number (1 and 0 for true and false)",
                collection.name,
                part.key,
                part.value,
            )


def _has_numbers(collection: Collection, keys: Keys, key: str) -> bool:
    """Return whether some point of a collection has a number or a boolean under a key."""
    most = sys.float_info.max
    conditions: list[models.Condition] = []
    for path in keys.paths(key):
        matches = [models.MatchValue(value=value) for value in (True, False)]
        conditions += [models.FieldCondition(key=path, match=match) for match in matches]
        conditions.append(models.FieldCondition(key=path, range=models.Range(gte=-most, lte=most)))
    where = models.Filter(should=conditions)
    return any(collection.scroll("looking for a number", where=where, limit=1, payload=False, as_seen=True))


def require_selective(filters: MetadataFilters, collection: Collection, keys: Keys) -> None:
    """Refuse filters of a deletion that rule nothing out: by an empty text, or by a key or a value that no point has.

    Raises:
        InputError: There is such a filter.
    """
    for part, _ in _each(filters):
        if part.operator in _FOR_PART and isinstance(part.value, str) and not part.value.strip():
            raise InputError(
                f"{_written(part)}: every text holds this, so every point with {part.key!r} passes; nothing was deleted"
            )
    ruling_out = _passing_without(filters)
    for part in ruling_out:
        if part.operator is not FilterOperator.IS_EMPTY and not _values(part):
            raise InputError(f"{_written(part)}: every point passes a filter without a value; nothing was deleted")
        if not keys.has(collection, part.key):
            reason = no_such_key(collection, part.key)
            raise InputError(f"{_written(part)}: {reason}, and every point passes; nothing was deleted")
    others = models.Filter(must_not=[build_filter(filters, keys)])
    if ruling_out and not any(collection.scroll("looking for what stays", where=others, limit=1, payload=False)):
        raise InputError(
            f"{', '.join(map(_written, ruling_out))}: every point of {collection.name!r} passes, since none has what "
            "it rules out; nothing was deleted. clear() empties the collection"
        )


def _condition(part: MetadataFilter, keys: Keys) -> models.Condition:
    """Translate one filter."""
    values, written = _values(part), _written(part)
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        # As JSON they are null, and a range between nulls lets every number pass.
        raise InputError(f"{written}: takes finite numbers: JSON has no others")
    if part.operator in _ONE_VALUE and (part.value is None or isinstance(part.value, list)):
        raise InputError(f"{written}: takes one value; IS_EMPTY finds what has none, IN what has one of several")
    if part.operator in _FOR_PART and not isinstance(part.value, str):
        raise InputError(f"{written}: takes a text")
    operator = _COMPARISONS.get(part.operator, "any")
    forms = [_forms(value) if operator in ("any", "all") else (value,) for value in values]
    matching = Comparison(part.key, operator, forms, written).within(keys)
    is_negative = part.operator in (FilterOperator.NE, FilterOperator.NIN)
    return models.Filter(must_not=[matching]) if is_negative else matching


def _forms(value: Value) -> tuple[Value, ...]:
    """Return a value and what equals it: 1 and 0 are true and false, as in Python."""
    return (value, bool(value)) if not isinstance(value, str) and value in (0, 1) else (value,)


def _written(part: MetadataFilter) -> str:
    return f"filter {part.key!r} {part.operator.value} {part.value!r}"


def _values(part: MetadataFilter) -> list[Value]:
    if isinstance(part.value, list):
        return list(part.value)
    if part.value is None:
        return []
    is_listed = part.operator in (FilterOperator.IN, FilterOperator.NIN) and isinstance(part.value, str)
    return [*part.value.split(",")] if is_listed and isinstance(part.value, str) else [part.value]
