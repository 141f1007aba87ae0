"""Filters of `CareVectorStore` against LlamaIndex's own store, which says what they mean."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from qdrant_client import QdrantClient, models

from care_qdrant import Collection
from care_qdrant.errors import InputError

METADATA: list[dict[str, Any]] = [
    {"n": 1, "s": "心内科", "tags": ["饮食", "慢病"], "day": "2024-01-02", "note": ""},
    {"n": 2.0, "s": "内科", "tags": ["用药"], "day": "2024-06-01", "note": []},
    {"n": 3, "s": "外科", "tags": [], "day": "2025-01-01", "note": None},
    {"s": "内科,外科", "n": "1"},
    {"n": None, "s": "儿科"},
    {"n": -5, "tags": ["用药", "饮食"], "note": "复诊"},
    {"flag": True, "flags": [False], "s": "Covid 疫苗"},
    {"flag": False},
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


@contextmanager
def two_stores(metadata: list[dict[str, Any]]) -> Iterator[tuple[CareVectorStore, SimpleVectorStore]]:
    """Open our store and LlamaIndex's own with a node for each of these metadata."""
    with closing(QdrantClient(":memory:")) as client:
        care, simple = CareVectorStore("filters", client), SimpleVectorStore()
        for store in (care, simple):
            store.add(
                [
                    TextNode(id_=str(uuid.UUID(int=number)), text=f"t{number}", metadata=one, embedding=[1.0, 0.0])
                    for number, one in enumerate(metadata)
                ]
            )
        yield care, simple


def kept(store: CareVectorStore | SimpleVectorStore) -> set[int]:
    ids = store.data.embedding_dict if isinstance(store, SimpleVectorStore) else (n.node_id for n in store.get_nodes())
    return {uuid.UUID(node_id).int for node_id in ids}


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
        *[("flag", operator, value) for operator in (OP.EQ, OP.NE) for value in (1, 0.0, 2, "true")],
        *[("flag", operator, [1]) for operator in (OP.IN, OP.NIN)],
        ("flags", OP.CONTAINS, 0),
        *[("s", OP.TEXT_MATCH, value) for value in ("科", "科,外", "疫苗", "covid")],
        *[("s", OP.TEXT_MATCH_INSENSITIVE, value) for value in ("covid", "COVID 疫苗", "内")],
    ],
)
def test_a_filter_finds_what_llama_index_finds(
    stores: tuple[CareVectorStore, SimpleVectorStore], key: str, operator: FilterOperator, value: Any
) -> None:
    one = MetadataFilter(key=key, operator=operator, value=value)
    care, simple = stores
    assert ask(care, one) == ask(simple, one)


NAMES = [
    "source.system",
    "a.b",
    "a.b.c",
    "a",
    "入院 日期",
    "价格（元）",
    "a/b",
    "tags[]",
    "[]",
    ".",
    "metadata.dept",
    "doc.id",
]
keys = st.one_of(st.sampled_from(NAMES), st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs"])))
numbers_and_texts = [st.integers(-9, 9), st.floats(-9, 9), st.sampled_from([2, 2.0, "2", "new", "old", ""])]
asked_values = st.one_of(numbers_and_texts)
stored_values = st.one_of(*numbers_and_texts, st.booleans())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_key_is_read_as_the_metadata_have_it(data: st.DataObject) -> None:
    """Searches and deletions, with and without NE: what goes is exactly what LlamaIndex's own store lets go."""
    names = data.draw(st.lists(keys, min_size=1, max_size=3, unique=True))
    metadata = data.draw(st.lists(st.dictionaries(st.sampled_from(names), stored_values), min_size=1, max_size=5))
    key = data.draw(st.sampled_from([name for name in names if any(name in one for one in metadata)] or names))
    operator = data.draw(st.sampled_from([OP.EQ, OP.NE, OP.IN, OP.NIN, OP.IS_EMPTY]))
    value = data.draw(asked_values)
    given_value: Any = [value] if operator in (OP.IN, OP.NIN) else value
    one = MetadataFilter(key=key, operator=operator, value=given_value)
    with two_stores(metadata) as (care, simple):
        assert ask(care, one) == ask(simple, one)
        if len(ask(simple, one)) == len(metadata) and operator in (OP.NE, OP.NIN, OP.IS_EMPTY):
            with pytest.raises(InputError, match=r"every point.* passes.*nothing was deleted"):
                care.delete_nodes(filters=MetadataFilters(filters=[one]))
            assert kept(care) == set(range(len(metadata)))
        else:
            for store in (care, simple):
                store.delete_nodes(filters=MetadataFilters(filters=[one]))
            assert kept(care) == kept(simple)


@pytest.mark.parametrize(
    "filters",
    [
        None,
        MetadataFilters(filters=[]),
        MetadataFilters(filters=[MetadataFilters(filters=[])], condition=FilterCondition.NOT),
        MetadataFilters(filters=[MetadataFilter(key="s.t", operator=OP.NE, value="x")]),
        MetadataFilters(filters=[MetadataFilter(key="s", operator=OP.NIN, value=[])]),
        MetadataFilters(filters=[MetadataFilter(key="s", operator=OP.NE, value=None)]),
        MetadataFilters(filters=[MetadataFilter(key="tags", operator=OP.ALL, value=[])]),
        MetadataFilters(filters=[MetadataFilter(key="typo", operator=OP.IS_EMPTY, value=None)]),
        MetadataFilters(filters=[MetadataFilter(key="typo", value="x")], condition=FilterCondition.NOT),
        MetadataFilters(filters=[MetadataFilter(key="s", operator=OP.NE, value="皮肤科")]),
        MetadataFilters(filters=[MetadataFilter(key="n", value=7)], condition=FilterCondition.NOT),
        MetadataFilters(
            filters=[
                MetadataFilter(key="n", value=1),
                MetadataFilters(filters=[MetadataFilter(key="typo", operator=OP.NIN, value=["x"])]),
            ],
            condition=FilterCondition.OR,
        ),
    ],
)
def test_a_deletion_of_everything_by_oversight_is_refused(
    stores: tuple[CareVectorStore, SimpleVectorStore], filters: MetadataFilters | None
) -> None:
    with pytest.raises(InputError, match="nothing was deleted"):
        stores[0].delete_nodes(filters=filters)
    stores[0].delete_nodes(node_ids=[], filters=filters)
    assert kept(stores[0]) == set(range(len(METADATA)))


NOTHING_SAID: tuple[Any, ...] = ("", " ", "\n", [], [""], ["", " "], None)


@given(
    operator=st.sampled_from([one for one in OP if one is not OP.IS_EMPTY]),
    value=st.sampled_from(NOTHING_SAID),
    wrap=st.sampled_from(["alone", "or", "not", "deep or"]),
)
@settings(max_examples=60)
def test_a_value_that_says_nothing_deletes_no_key(operator: FilterOperator, value: Any, wrap: str) -> None:
    """No point has an empty value here, so whatever an operator makes of one, the points with the key stay."""
    empty: Any = MetadataFilter(key="s", operator=operator, value=value)
    other = MetadataFilter(key="n", value=7)
    match wrap:
        case "or":
            chosen = MetadataFilters(filters=[other, empty], condition=FilterCondition.OR)
        case "not":
            chosen = MetadataFilters(filters=[empty], condition=FilterCondition.NOT)
        case "deep or":
            inner = MetadataFilters(filters=[empty, other], condition=FilterCondition.OR)
            chosen = MetadataFilters(filters=[other, inner], condition=FilterCondition.OR)
        case _:
            chosen = MetadataFilters(filters=[empty])
    with two_stores([{"s": "内科"}, {"s": "外 科"}, {"s": "儿科", "n": 1}, {"n": 2}]) as (care, _):
        with suppress(InputError):
            care.delete_nodes(filters=chosen)
        assert {0, 1, 2} & kept(care)


def test_a_key_that_was_there_before_saves_no_point(stores: tuple[CareVectorStore, SimpleVectorStore]) -> None:
    other = MetadataFilter(key="n", operator=OP.NE, value=7)
    assert len(ask(stores[0], other)) == len(METADATA)
    stores[0].delete_nodes([node.node_id for node in nodes()])
    stores[0].add([TextNode(id_=str(uuid.UUID(int=9)), text="t", embedding=[1.0, 0.0])])
    with pytest.raises(InputError, match="no point of 'filters' has 'n'"):
        stores[0].delete_nodes(filters=MetadataFilters(filters=[other]))


def test_a_deletion_without_an_id_names_what_empties_the_collection(
    stores: tuple[CareVectorStore, SimpleVectorStore],
) -> None:
    with pytest.raises(InputError, match=r"clear\(\) empties the collection"):
        stores[0].delete_nodes()
    for nothing in ("", None, "None"):  # the last is what LlamaIndex writes for the second
        with pytest.raises(InputError, match="nothing was deleted"):
            stores[0].delete(nothing)  # type: ignore[arg-type]
    assert kept(stores[0]) == set(range(len(METADATA)))


def test_a_text_that_holds_a_number_is_compared_as_one(stores: tuple[CareVectorStore, SimpleVectorStore]) -> None:
    for operator, found in ((OP.GT, [1, 2]), (OP.GTE, [0, 1, 2]), (OP.LT, [5]), (OP.LTE, [0, 5])):
        assert ask(stores[0], MetadataFilter(key="n", operator=operator, value="1")) == found


def test_what_rules_out_a_value_of_other_points_still_deletes(
    stores: tuple[CareVectorStore, SimpleVectorStore],
) -> None:
    """Within a selection, a value that no point has rules nothing out, and only the selection goes."""
    old = [MetadataFilter(key="day", value="2024-01-02"), MetadataFilter(key="s", operator=OP.NE, value="皮肤科")]
    stores[0].delete_nodes(filters=MetadataFilters(filters=old))
    assert kept(stores[0]) == set(range(1, len(METADATA)))


def test_the_deletion_of_document_007_leaves_document_7(client: QdrantClient) -> None:
    client.create_collection("plain", models.VectorParams(size=2, distance=models.Distance.COSINE))
    ids: list[Any] = [7, "7", "007", 70, "x"]
    points = [
        models.PointStruct(id=n, vector=[1.0, n], payload={"text": "t", "id": each}) for n, each in enumerate(ids)
    ]
    client.upsert("plain", points, wait=True)
    store = CareVectorStore("plain", client)
    for document_id, left in (("007", [0, 1, 3, 4]), ("7", [3, 4])):
        store.delete(document_id)
        assert [record.id for record in client.scroll("plain")[0]] == left


@pytest.mark.parametrize("operator", [OP.NE, OP.NIN])
def test_a_deletion_leaves_what_a_filter_of_another_tools_points_keeps(
    client: QdrantClient, operator: FilterOperator
) -> None:
    """Those points have the largest ids, and only the key of the others has an index."""
    client.create_collection("mixed", models.VectorParams(size=2, distance=models.Distance.COSINE))
    payloads: list[dict[str, Any]] = [{"text": "t", "s": "ab"[n % 2]} for n in range(40)]
    payloads += [{"page_content": "t", "metadata": {"s": "ab"[n % 2]}} for n in range(6)]
    points = [models.PointStruct(id=n, vector=[1.0, n], payload=payload) for n, payload in enumerate(payloads)]
    client.upsert("mixed", points, wait=True)
    Collection(client, "mixed").create_indexes({"s": models.PayloadSchemaType.KEYWORD})
    chosen = MetadataFilter(key="s", operator=operator, value="a" if operator is OP.NE else ["a"])
    CareVectorStore("mixed", client).delete_nodes(filters=MetadataFilters(filters=[chosen]))
    assert [record.id for record in client.scroll("mixed", limit=99)[0]] == list(range(0, 46, 2))


def test_qdrant_filters_and_metadata_filters_both_hold(stores: tuple[CareVectorStore, SimpleVectorStore]) -> None:
    words = models.FieldCondition(key="tags", match=models.MatchValue(value="用药"))
    old = MetadataFilters(filters=[MetadataFilter(key="n", operator=OP.LT, value=0)])
    query = VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=9, filters=old)
    found = stores[0].query(query, qdrant_filters=models.Filter(must=[words]))
    assert [uuid.UUID(node_id).int for node_id in found.ids or ()] == [5]


def test_a_filter_that_rules_nothing_out_is_said_once(
    stores: tuple[CareVectorStore, SimpleVectorStore], caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("typo", "s", "typo"):
        ask(stores[0], MetadataFilter(key=key, operator=OP.NE, value="x"))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("key", "operator", "value", "said"),
    [
        ("n", OP.EQ, "2", "compares 'n' with '2', a text"),
        ("n", OP.NIN, ["3", "7"], "compares 'n' with ['3', '7'], a text"),
        ("flag", OP.NE, "true", "compares 'flag' with 'true', a text"),
        ("s", OP.EQ, "7", None),
        ("n", OP.EQ, "内科", None),
        ("n", OP.EQ, 2, None),
    ],
)
def test_a_text_where_points_have_a_number_is_said_once(
    stores: tuple[CareVectorStore, SimpleVectorStore],
    caplog: pytest.LogCaptureFixture,
    key: str,
    operator: FilterOperator,
    value: Any,
    said: str | None,
) -> None:
    """LlamaIndex takes the two for different values, and a language model writes either: an answer misses them."""
    for _ in range(2):
        ask(stores[0], MetadataFilter(key=key, operator=operator, value=value))
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == (said is not None)
    assert said is None or said in told[0]


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
    for condition, found in (("and", [0]), ("or", [0]), ("not", [1, 2, 3, 4, 5, 6, 7])):
        assert ask(stores[0], empty, one, condition=condition) == found
        assert ask(stores[0], empty, condition=condition) == list(range(len(METADATA)))


@pytest.mark.parametrize(
    ("operator", "value", "said"),
    [
        (OP.GT, "内科", "takes a number or a date"),
        (OP.EQ, None, "IS_EMPTY finds what has none"),
        (OP.EQ, ["a"], "IN what has one of several"),
        (OP.TEXT_MATCH, 3, "takes a text"),
        (OP.EQ, float("nan"), "takes finite numbers"),
        (OP.NIN, [1.0, float("nan")], "takes finite numbers"),
        (OP.GT, float("-inf"), "takes finite numbers"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    stores: tuple[CareVectorStore, SimpleVectorStore], operator: FilterOperator, value: Any, said: str
) -> None:
    one = MetadataFilter(key="s", operator=operator, value=value)
    with pytest.raises(InputError, match=rf"filter 's' {operator.value} .*{said}"):
        ask(stores[0], one)
    with pytest.raises(InputError, match=said):
        stores[0].delete_nodes(filters=MetadataFilters(filters=[one]))
    assert kept(stores[0]) == set(range(len(METADATA)))
