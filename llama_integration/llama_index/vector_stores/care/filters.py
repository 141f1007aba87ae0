"""LlamaIndex's metadata filters as Qdrant conditions, with the meaning that LlamaIndex gives them.

The stock store lets NE and NIN miss points that lack the key (LlamaIndex counts them as different), knows no CONTAINS,
ANY and ALL, lets a list of node ids widen an OR filter where it should narrow it, takes 2 for another number than a
stored 2.0 and 1 for another value than a stored true (a filter of LlamaIndex holds no booleans), takes a dot in a key
for a way down, and drops all of these filters where ``qdrant_filters=`` is given, too.

Two things stay Qdrant's. TEXT_MATCH, with case or without, looks for words of any case where there is a full-text
index. Without one it looks for a part of the text, TEXT_MATCH_INSENSITIVE in the usual spellings (covid, COVID, Covid).
CONTAINS looks into arrays and not into strings.
"""

import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.vector_stores.care.once import OnceLogger
from llama_index.vector_stores.care.points import having_ids
from qdrant_client import models

from care_qdrant import Collection
from care_qdrant.contracts.layouts import Layout
from care_qdrant.errors import InputError
from care_qdrant.search.conditions import (
    BOUNDS,
    ORDERED,
    Condition,
    Keys,
    at_first,
    equals,
    holds,
    is_absent,
    no_such_key,
    ordered,
)

logger = logging.getLogger(__name__)

Value = str | int | float
DOCUMENT_ID_KEY = "doc_id"
_PASSING_WITHOUT = (FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY)
"""Operators that a point passes which does not have the key."""
_FOR_EQUAL = (
    FilterOperator.EQ,
    FilterOperator.NE,
    FilterOperator.IN,
    FilterOperator.NIN,
    FilterOperator.ANY,
    FilterOperator.ALL,
    FilterOperator.CONTAINS,
)
"""Operators that look for values equal to those of the filter."""
_FOR_PART = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)
"""Operators that look for a part of a text."""


def query_filter(query: VectorStoreQuery, layout: Layout | None, keys: Keys) -> models.Filter | None:
    """Return the filter of a query: its documents, its nodes and its metadata filters; None for all points."""
    must: list[models.Condition] = []
    if query.doc_ids:
        must.append(document_filter(query.doc_ids, layout))
    if query.node_ids:  # `VectorStoreIndex.as_retriever` gives an empty list for all nodes
        must.append(having_ids(query.node_ids))
    if query.filters and query.filters.filters:
        must.append(build_filter(query.filters, keys))
    return models.Filter(must=must) if must else None


def node_filter(node_ids: Iterable[str] | None, filters: MetadataFilters | None, keys: Keys) -> models.Filter:
    """Return the filter of nodes that have one of the ids and pass the filters; what is None does not count."""
    must: list[models.Condition] = []
    if node_ids is not None:
        must.append(having_ids(node_ids))
    if filters is not None and filters.filters:
        must.append(build_filter(filters, keys))
    return models.Filter(must=must or None)


def all_of(*filters: models.Filter | None) -> models.Filter | None:
    """Return the filter of points that pass all of these; None for all points."""
    there = [one for one in filters if one is not None]
    return models.Filter(must=list(there)) if len(there) > 1 else next(iter(there), None)


def document_filter(document_ids: Sequence[str], layout: Layout | None) -> models.Filter:
    """Return the filter of points whose document has one of the ids, by the first path that is there."""
    paths = [DOCUMENT_ID_KEY]
    if layout is not None and layout.tool not in ("care", "llama-index"):
        # Last where our own `add` has them: points of several tools can be in one collection.
        paths = list(dict.fromkeys([*layout.document_paths, DOCUMENT_ID_KEY]))
    return models.Filter(must=[at_first(paths, lambda path: any_of(path, document_ids))])


def build_filter(filters: MetadataFilters, keys: Keys) -> models.Filter:
    """Translate filters, nested ones too; empty groups say nothing."""
    conditions = [
        build_filter(one, keys) if isinstance(one, MetadataFilters) else _condition(one, keys)
        for one in filters.filters
        if not is_empty(one)
    ]
    match filters.condition:
        case FilterCondition.OR:
            return models.Filter(should=conditions)
        case FilterCondition.NOT:
            return models.Filter(must_not=conditions)
        case _:
            return models.Filter(must=conditions)


def is_empty(one: MetadataFilter | MetadataFilters | None) -> bool:
    """Return whether there is no filter in a group or in the groups inside it."""
    return one is None or (isinstance(one, MetadataFilters) and all(map(is_empty, one.filters)))


def passing_without(filters: MetadataFilters, *, negated: bool = False) -> Iterator[MetadataFilter]:
    """Yield the filters that a point passes which does not have their key; all points where no point has it."""
    negated ^= filters.condition is FilterCondition.NOT
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            yield from passing_without(one, negated=negated)
        elif negated ^ (one.operator in _PASSING_WITHOUT or (one.operator is FilterOperator.ALL and not _values(one))):
            yield one


def _matching_every_text(filters: MetadataFilters) -> Iterator[MetadataFilter]:
    """Yield the filters that every point with their key passes: those for a part of a text, without a part."""
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            yield from _matching_every_text(one)
        elif one.operator in _FOR_PART and isinstance(one.value, str) and not one.value.strip():
            yield one


def written_numbers(filters: MetadataFilters) -> Iterator[MetadataFilter]:
    """Yield the filters for equal values that look for a text which writes a number or a boolean."""
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            yield from written_numbers(one)
        elif one.operator in _FOR_EQUAL and any(
            isinstance(text, str) and not isinstance(Condition(one.key, "=", text).value, str) for text in _values(one)
        ):
            yield one


def warn_of_filters(filters: MetadataFilters, collection: Collection, keys: Keys, warnings: OnceLogger) -> None:
    """Log once of each key that no point has, or that has numbers where a filter compares with a text."""
    for one in passing_without(filters):
        said = f"key {one.key}"
        if not warnings.has_warned(said) and not keys.has(collection, one.key):
            reason = no_such_key(collection, one.key)
            warnings.warn(said, "%s: a filter on it with %s passes every point", reason, one.operator.value)
    for one in written_numbers(filters):
        if warnings.is_first(f"number {one.key}") and has_numbers(collection, keys, one.key):
            logger.warning(
                "collection %r: a filter compares %r with %r, a text, but points have numbers or booleans there, "
                "which are other values to LlamaIndex: give a number (1 and 0 for true and false)",
                collection.name,
                one.key,
                one.value,
            )


def has_numbers(collection: Collection, keys: Keys, key: str) -> bool:
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
    for one in _matching_every_text(filters):
        raise InputError(
            f"filter {one.key!r} {one.operator.value} {one.value!r}: every text holds this, so every point with "
            f"{one.key!r} passes; nothing was deleted"
        )
    ruling_out = list(passing_without(filters))
    for one in ruling_out:
        said = f"filter {one.key!r} {one.operator.value} {one.value!r}"
        if one.operator is not FilterOperator.IS_EMPTY and not _values(one):
            raise InputError(f"{said}: every point passes a filter without a value; nothing was deleted")
        if not keys.has(collection, one.key):
            reason = no_such_key(collection, one.key)
            raise InputError(f"{said}: {reason}, and every point passes; nothing was deleted")
    others = models.Filter(must_not=[build_filter(filters, keys)])
    if ruling_out and not any(collection.scroll("looking for what stays", where=others, limit=1, payload=False)):
        said = ", ".join(f"{one.key!r} {one.operator.value} {one.value!r}" for one in ruling_out)
        raise InputError(
            f"filter {said}: every point of {collection.name!r} passes, since none has what it rules out; nothing was "
            "deleted. clear() empties the collection"
        )


def any_of(path: str, values: Sequence[Value], kind: str | None = None) -> models.Condition:
    """Match points that have one of the values, or an array with one of them, under the path."""
    words = [value for value in values if isinstance(value, str)]
    if len(words) == len(values):
        return models.FieldCondition(key=path, match=models.MatchAny(any=words))
    return models.Filter(should=[_same(path, value, kind) for value in values])


def _same(path: str, value: Value, kind: str | None) -> models.Condition:
    """Match points that have the value, or an array with it; 1 and 0 are true and false, too, as in Python."""
    if isinstance(value, str) or value not in (0, 1) or kind not in (None, "bool"):
        return equals(path, value, kind)
    each = [equals(path, bool(value), kind)] + ([equals(path, value)] if kind is None else [])
    return models.Filter(should=list(each))


def _condition(one: MetadataFilter, keys: Keys) -> models.Condition:
    if any(isinstance(value, float) and not math.isfinite(value) for value in _values(one)):
        # As JSON they are null, and a range between nulls lets every number pass.
        raise _unusable(one, "finite numbers: JSON has no others")
    paths = keys.paths(one.key)
    if one.operator is FilterOperator.IS_EMPTY:
        no_value = models.Filter(must=list(map(is_absent, paths)))
        return models.Filter(should=[no_value, at_first(paths, lambda path: equals(path, ""))])
    found = at_first(paths, lambda path: _at(one, path, keys))
    return models.Filter(must_not=[found]) if one.operator in _PASSING_WITHOUT else found


def _at(one: MetadataFilter, path: str, keys: Keys) -> models.Condition:
    """Return the condition of a filter on a path of Qdrant; of NE and NIN, what they rule out."""
    kind = keys.kind(path)
    match one.operator:
        case FilterOperator.ALL:
            return models.Filter(must=[_same(path, value, kind) for value in _values(one)])
        case operator if operator in _FOR_PART:
            any_case = one.operator is FilterOperator.TEXT_MATCH_INSENSITIVE
            return holds(path, _text(one), kind, any_case=any_case, is_embedded=keys.is_embedded)
        case FilterOperator.EQ:
            return _same(path, _single(one), kind)
        case operator if operator.value in BOUNDS:
            condition = ordered(path, BOUNDS[operator.value], _single(one), kind)
            if condition is None:
                raise _unusable(one, ORDERED)
            return condition
        case _:  # IN, ANY, CONTAINS, NE, NIN
            return any_of(path, _values(one), kind)


def _single(one: MetadataFilter) -> Value:
    if one.value is None or isinstance(one.value, list):
        raise _unusable(one, "one value; IS_EMPTY finds what has none, IN what has one of several")
    return one.value


def _text(one: MetadataFilter) -> str:
    if not isinstance(one.value, str):
        raise _unusable(one, "a text")
    return one.value


def _unusable(one: MetadataFilter, wanted: str) -> InputError:
    return InputError(f"filter {one.key!r} {one.operator.value} {one.value!r}: takes {wanted}")


def _values(one: MetadataFilter) -> list[Value]:
    if isinstance(one.value, list):
        return list(one.value)
    if one.value is None:
        return []
    is_listed = one.operator in (FilterOperator.IN, FilterOperator.NIN) and isinstance(one.value, str)
    return [*one.value.split(",")] if is_listed and isinstance(one.value, str) else [one.value]
