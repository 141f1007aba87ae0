"""Filters of `CareVectorStore` against LlamaIndex's own store, which says what they mean."""

import uuid
from typing import Any

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
)
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant.errors import InputError

METADATA: list[dict[str, Any]] = [
    {"n": 1, "s": "心内科", "tags": ["饮食", "慢病"], "day": "2024-01-02", "note": ""},
    {"n": 2.0, "s": "内科", "tags": ["用药"], "day": "2024-06-01", "note": []},
    {"n": 3, "s": "外科", "tags": [], "day": "2025-01-01", "note": None},
    {"s": "内科,外科", "n": "1"},
    {"n": None, "s": "儿科"},
    {"n": -5, "tags": ["用药", "饮食"], "note": "复诊"},
]
OP = FilterOperator


def nodes() -> list[TextNode]:
    return [
        TextNode(id_=str(uuid.UUID(int=number)), text=f"t{number}", metadata=one, embedding=[1.0, number / 10])
        for number, one in enumerate(METADATA)
    ]


@pytest.fixture
def stores(client: QdrantClient) -> tuple[CareVectorStore, SimpleVectorStore]:
    care, simple = CareVectorStore("filters", client), SimpleVectorStore()
    care.add(nodes())
    simple.add(nodes())  # type: ignore[arg-type]  # lists are invariant
    return care, simple


def ask(store: BasePydanticVectorStore, *filters: Any, condition: str = "and") -> list[int]:
    chosen = MetadataFilters(filters=list(filters), condition=FilterCondition(condition))
    found = store.query(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=9, filters=chosen))
    return sorted(uuid.UUID(node_id).int for node_id in found.ids or ())


@pytest.mark.parametrize(
    ("key", "operator", "value"),
    [
        *[("n", operator, value) for operator in (OP.EQ, OP.NE) for value in (1, 2, 2.0, -5.0, "1", 2**60)],
        *[("s", operator, "内科") for operator in (OP.EQ, OP.NE)],
        *[("n", operator, value) for operator in (OP.IN, OP.NIN) for value in ([1, 2], [1.0, 2.0], ["1"], [])],
        *[("s", operator, ["内科", "儿科"]) for operator in (OP.IN, OP.NIN)],
        *[("tags", OP.CONTAINS, value) for value in ("用药", "没有")],
        *[("tags", operator, ["饮食", "用药"]) for operator in (OP.ANY, OP.ALL)],
        *[(key, OP.IS_EMPTY, None) for key in ("n", "tags", "note", "day")],
    ],
)
def test_a_filter_finds_what_llama_index_finds(
    stores: tuple[CareVectorStore, SimpleVectorStore], key: str, operator: FilterOperator, value: Any
) -> None:
    one = MetadataFilter(key=key, operator=operator, value=value)
    care, simple = stores
    assert ask(care, one) == ask(simple, one)


@pytest.mark.parametrize("operator", [OP.GT, OP.GTE, OP.LT, OP.LTE])
@pytest.mark.parametrize("bound", [("n", 2), ("n", 1.5), ("day", "2024-06-01"), ("day", "2024-03-01T12:00:00Z")])
def test_numbers_and_dates_are_ordered(
    stores: tuple[CareVectorStore, SimpleVectorStore], operator: FilterOperator, bound: tuple[str, Any]
) -> None:
    key, value = bound
    same_kind = [n for n, one in enumerate(METADATA) if isinstance(one.get(key), str) == isinstance(value, str)]
    compare = {OP.GT: "__gt__", OP.GTE: "__ge__", OP.LT: "__lt__", OP.LTE: "__le__"}[operator]
    stored = {n: METADATA[n][key] for n in same_kind if METADATA[n].get(key) is not None}
    expected = [n for n, found in stored.items() if getattr(type(value)(found), compare)(value)]
    assert ask(stores[0], MetadataFilter(key=key, operator=operator, value=value)) == expected


def test_empty_groups_say_nothing_however_deep(stores: tuple[CareVectorStore, SimpleVectorStore]) -> None:
    empty = MetadataFilters(filters=[MetadataFilters(filters=[MetadataFilters(filters=[])])])
    one = MetadataFilter(key="n", value=1)
    for condition, found in (("and", [0]), ("or", [0]), ("not", [1, 2, 3, 4, 5])):
        assert ask(stores[0], empty, one, condition=condition) == found
        assert ask(stores[0], empty, condition=condition) == list(range(6))


@pytest.mark.parametrize(
    ("operator", "value", "said"),
    [
        (OP.GT, "内科", "takes a number or a date"),
        (OP.EQ, None, "IS_EMPTY finds what has none"),
        (OP.EQ, ["a"], "IN what has one of several"),
        (OP.TEXT_MATCH, 3, "takes a text"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    stores: tuple[CareVectorStore, SimpleVectorStore], operator: FilterOperator, value: Any, said: str
) -> None:
    with pytest.raises(InputError, match=rf"filter 's' {operator.value} .*{said}"):
        ask(stores[0], MetadataFilter(key="s", operator=operator, value=value))
