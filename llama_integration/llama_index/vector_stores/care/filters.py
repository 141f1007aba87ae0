"""LlamaIndex's metadata filters as Qdrant conditions, with the meaning that LlamaIndex gives them.

The stock store lets NE and NIN miss points that lack the key (LlamaIndex counts them as different), knows no CONTAINS,
ANY and ALL, and lets a list of node ids widen an OR filter where it should narrow it.
"""

from collections.abc import Callable, Sequence

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from qdrant_client import models

Value = str | int | float
Build = Callable[[MetadataFilter], models.Condition]


def build_filter(filters: MetadataFilters, key_of: Callable[[str], str], stock: Build) -> models.Filter:
    """Translate filters, nested ones too; empty groups say nothing.

    Args:
        filters: As LlamaIndex has them.
        key_of: Gives the payload key of a metadata key.
        stock: Translates the operators that the stock store gets right.
    """
    conditions = [
        build_filter(one, key_of, stock) if isinstance(one, MetadataFilters) else _condition(one, key_of, stock)
        for one in filters.filters
        if not isinstance(one, MetadataFilters) or one.filters
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
    whole = [value for value in values if isinstance(value, int)]
    if len(whole) == len(values):
        return models.FieldCondition(key=key, match=models.MatchAny(any=whole))
    return models.Filter(should=[equals(key, value) for value in values])


def of_documents(paths: Sequence[str], document_ids: Sequence[str]) -> models.Filter:
    """Match points whose document has one of the ids, where the first path that is there holds the id."""
    return models.Filter(
        should=[
            models.Filter(must=[any_of(path, document_ids), *map(_is_absent, paths[:number])])
            for number, path in enumerate(paths)
        ]
    )


def equals(key: str, value: Value) -> models.FieldCondition:
    """Match points that have the value, or an array with it, under the key."""
    if isinstance(value, float):
        return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


def _condition(one: MetadataFilter, key_of: Callable[[str], str], stock: Build) -> models.Condition:
    key = key_of(one.key)
    match one.operator:
        case FilterOperator.CONTAINS | FilterOperator.ANY | FilterOperator.IN:
            return any_of(key, _values(one))
        case FilterOperator.ALL:
            return models.Filter(must=[equals(key, value) for value in _values(one)])
        case FilterOperator.NE | FilterOperator.NIN:
            return models.Filter(must_not=[any_of(key, _values(one))])
        case _:
            return stock(one.model_copy(update={"key": key}))


def _values(one: MetadataFilter) -> list[Value]:
    if isinstance(one.value, list):
        return list(one.value)
    if one.value is None:
        return []
    is_listed = one.operator in (FilterOperator.IN, FilterOperator.NIN) and isinstance(one.value, str)
    return [*one.value.split(",")] if is_listed and isinstance(one.value, str) else [one.value]


def _is_absent(path: str) -> models.IsEmptyCondition:
    return models.IsEmptyCondition(is_empty=models.PayloadField(key=path))
