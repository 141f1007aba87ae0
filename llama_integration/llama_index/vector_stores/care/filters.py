"""LlamaIndex's metadata filters as Qdrant conditions, with the meaning that LlamaIndex gives them.

The stock store lets NE and NIN miss points that lack the key (LlamaIndex counts them as different), knows no CONTAINS,
ANY and ALL, lets a list of node ids widen an OR filter where it should narrow it, and takes 2 for another number than
a stored 2.0.

Two things stay Qdrant's. TEXT_MATCH, with case or without, looks for words of any case where there is a full-text
index and in the embedded database, and for a part of the text on a server without one. CONTAINS looks into arrays and
not into strings.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from llama_index.vector_stores.care.points import having_ids
from qdrant_client import models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.layout import Layout

Value = str | int | float
DOCUMENT_ID_KEY = "doc_id"

_BOUNDS = {FilterOperator.GT: "gt", FilterOperator.GTE: "gte", FilterOperator.LT: "lt", FilterOperator.LTE: "lte"}
_EXACT_IN_FLOAT = 2**53
"""Up to here a whole number is the same as a float, which is what Qdrant compares ranges by."""

MODES = (
    VectorStoreQueryMode.DEFAULT,
    VectorStoreQueryMode.SPARSE,
    VectorStoreQueryMode.HYBRID,
    VectorStoreQueryMode.MMR,
)
"""Modes that are answered; the stock store answers all others, and MMR, as if they were the first."""
LEXICAL = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID)


def query_filter(query: VectorStoreQuery, layout: Layout | None) -> models.Filter | None:
    """Return the filter of a query: its documents, its nodes and its metadata filters; None for all points."""
    must: list[models.Condition] = []
    if query.doc_ids:
        must.append(document_filter(query.doc_ids, layout))
    if query.node_ids:  # `VectorStoreIndex.as_retriever` gives an empty list for all nodes
        must.append(having_ids(query.node_ids))
    if query.filters and query.filters.filters:
        must.append(build_filter(query.filters, layout))
    return models.Filter(must=must) if must else None


def node_filter(
    node_ids: Iterable[str] | None, filters: MetadataFilters | None, layout: Layout | None
) -> models.Filter:
    """Return the filter of nodes that have one of the ids and pass the filters; what is None does not count."""
    must: list[models.Condition] = []
    if node_ids is not None:
        must.append(having_ids(node_ids))
    if filters is not None and filters.filters:
        must.append(build_filter(filters, layout))
    return models.Filter(must=must or None)


def document_filter(document_ids: Sequence[str], layout: Layout | None) -> models.Filter:
    """Return the filter of points whose document has one of the ids, by the first path that is there."""
    paths = [DOCUMENT_ID_KEY]
    if layout is not None and layout.tool not in ("care", "llama-index"):
        # Last where our own `add` has them: points of several tools can be in one collection.
        paths = list(dict.fromkeys([*layout.document_paths, DOCUMENT_ID_KEY]))
    return models.Filter(
        should=[
            models.Filter(must=[any_of(path, document_ids), *map(_is_absent, paths[:number])])
            for number, path in enumerate(paths)
        ]
    )


def build_filter(filters: MetadataFilters, layout: Layout | None) -> models.Filter:
    """Translate filters, nested ones too; empty groups say nothing."""
    key_of = str if layout is None else layout.filter_key
    conditions = [
        build_filter(one, layout) if isinstance(one, MetadataFilters) else _condition(one, key_of(one.key))
        for one in filters.filters
        if not _is_empty(one)
    ]
    match filters.condition:
        case FilterCondition.OR:
            return models.Filter(should=conditions)
        case FilterCondition.NOT:
            return models.Filter(must_not=conditions)
        case _:
            return models.Filter(must=conditions)


def any_of(key: str, values: Sequence[Value]) -> models.Condition:
    """Match points that have one of the values, or an array with one of them, under the key."""
    words = [value for value in values if isinstance(value, str)]
    if len(words) == len(values):
        return models.FieldCondition(key=key, match=models.MatchAny(any=words))
    return models.Filter(should=[equals(key, value) for value in values])


def equals(key: str, value: Value) -> models.FieldCondition:
    """Match points that have the value, or an array with it, under the key; 2 equals 2.0."""
    if isinstance(value, str) or (isinstance(value, int) and abs(value) > _EXACT_IN_FLOAT):
        return models.FieldCondition(key=key, match=models.MatchValue(value=value))
    return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))


def _condition(one: MetadataFilter, key: str) -> models.Condition:
    match one.operator:
        case FilterOperator.CONTAINS | FilterOperator.ANY | FilterOperator.IN:
            return any_of(key, _values(one))
        case FilterOperator.ALL:
            return models.Filter(must=[equals(key, value) for value in _values(one)])
        case FilterOperator.NE | FilterOperator.NIN:
            return models.Filter(must_not=[any_of(key, _values(one))])
        case FilterOperator.IS_EMPTY:
            return models.Filter(should=[_is_absent(key), equals(key, "")])
        case FilterOperator.TEXT_MATCH | FilterOperator.TEXT_MATCH_INSENSITIVE:
            return models.FieldCondition(key=key, match=models.MatchText(text=_text(one)))
        case FilterOperator.EQ:
            return equals(key, _single(one))
        case operator:
            return models.FieldCondition(key=key, range=_range(one, _BOUNDS[operator]))


def _range(one: MetadataFilter, bound: str) -> models.Range | models.DatetimeRange:
    value = _single(one)
    if not isinstance(value, str):
        return models.Range(**{bound: value})
    try:
        return models.DatetimeRange(**{bound: datetime.fromisoformat(value)})
    except ValueError:
        raise _unusable(one, "a number or a date (2024-03-01, 2024-03-01T08:00:00Z): Qdrant orders no others") from None


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


def _is_empty(one: MetadataFilter | MetadataFilters) -> bool:
    return isinstance(one, MetadataFilters) and all(map(_is_empty, one.filters))


def _is_absent(path: str) -> models.IsEmptyCondition:
    return models.IsEmptyCondition(is_empty=models.PayloadField(key=path))
