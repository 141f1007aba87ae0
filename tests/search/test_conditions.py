"""Conditions on metadata against plain comparisons of Python, in qdrant-client's local mode and in Qdrant's engine."""

import json
import operator as comparison
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest
import qdrant_edge as edge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.layouts import read_hit
from care_qdrant.contracts.paths import readings
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import index_schemas, parse_indexes
from care_qdrant.search.conditions import MAX_CONDITIONS, Comparison, Keys, notice, parse_filter, written_key
from care_qdrant.search.overview import overview
from care_qdrant.types import CARE_KEY
from tests.databases import REAL, open_database

VECTORS = {"v": models.VectorParams(size=1, distance=models.Distance.DOT)}
NAMES = [
    "source.system",
    "a.b",
    "a.b.c",
    "a",
    "Publication Date",
    "价格（元）",
    "a/b",
    "x[0]",
    "tags[]",
    "[]",
    "",
    ".",
    "c#",
]
NAMES += ["year>", "a=b", "!", " edge ", "a..b", "é", "ा", "user-id", "line\nbreak", "metadata.dept"]


@pytest.fixture(scope="module")
def local() -> Iterator[QdrantClient]:
    with closing(QdrantClient(":memory:")) as client:
        client.create_collection("points", vectors_config=VECTORS)
        yield client


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[edge.EdgeShard]:
    config = edge.EdgeConfig(vectors={"v": edge.EdgeVectorParams(size=1, distance=edge.Distance.Dot)})
    with closing(edge.EdgeShard.create(str(tmp_path_factory.mktemp("shard")), config)) as shard:
        yield shard


def in_engine(condition: Any) -> Any:
    """Return a condition of qdrant-client as the engine takes it."""
    if isinstance(condition, models.Filter):
        parts = {name: getattr(condition, name) for name in ("must", "should", "must_not")}
        return edge.Filter(
            **{name: None if part is None else list(map(in_engine, part)) for name, part in parts.items()}
        )
    if isinstance(condition, models.IsEmptyCondition):
        return edge.IsEmptyCondition(condition.is_empty.key)
    if isinstance(condition, models.IsNullCondition):
        return edge.IsNullCondition(condition.is_null.key)
    if condition.match is not None:
        return edge.FieldCondition(key=condition.key, match=edge.MatchValue(condition.match.value))
    kind = edge.RangeFloat if isinstance(condition.range, models.Range) else edge.RangeDateTime
    bounds = {
        name: str(bound) if kind is edge.RangeDateTime else bound
        for name, bound in condition.range
        if bound is not None
    }
    return edge.FieldCondition(key=condition.key, range=kind(**bounds))


def passing(
    local: QdrantClient, engine: edge.EdgeShard, payloads: list[dict[str, Any]], where: models.Filter
) -> set[int]:
    """Return the numbers of the payloads that pass a filter, in both databases alike."""
    numbers = list(range(1, len(payloads) + 1))
    local.delete("points", models.Filter())
    points = [
        models.PointStruct(id=n, vector={"v": [1.0]}, payload=each) for n, each in zip(numbers, payloads, strict=True)
    ]
    local.upsert("points", points)
    found = {int(record.id) for record in local.scroll("points", where, limit=100)[0]}
    if any(isinstance(value, bool) for payload in payloads for value in _values(payload)):
        return found  # the engine's Python interface takes a boolean to match for a number
    engine.update(edge.UpdateOperation.delete_points_by_filter(edge.Filter()))
    engine.update(
        edge.UpdateOperation.upsert_points(
            [edge.Point(n, {"v": [1.0]}, each) for n, each in zip(numbers, payloads, strict=True)]
        )
    )
    records, _ = engine.scroll(edge.ScrollRequest(limit=100, filter=in_engine(where)))
    assert found == {record.id for record in records}
    return found


def _values(payload: dict[str, Any]) -> Iterator[Any]:
    for value in payload.values():
        yield from _values(value) if isinstance(value, dict) else [value]


keys = st.one_of(st.sampled_from(NAMES), st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs"])))
numbers = st.one_of(
    st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([2020, 2020.0])
)
values = st.one_of(
    numbers,
    st.booleans(),
    st.sampled_from(["2020", "true", "new", "", "=", '"', " x "]),
    st.text(st.characters(exclude_categories=["Cs"])),
)


def at(payload: Any, key: str) -> Any:
    """Return the value under a key, a name before a path; None where there is none."""
    if key in payload:
        return payload[key]
    for place in (place for place, character in enumerate(key) if character == "."):
        inner = payload.get(key[:place])
        if isinstance(inner, dict) and (value := at(inner, key[place + 1 :])) is not None:
            return value
    return None


def is_equal(stored: Any, value: Any) -> bool:
    """Return whether two values are equal and of one kind: 2 and 2.0 are, True and 1 are not."""
    kinds = (bool, str)
    return bool(stored == value) and [isinstance(stored, kind) for kind in kinds] == [
        isinstance(value, kind) for kind in kinds
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_condition_passes_the_points_that_python_would_pick(
    local: QdrantClient, engine: edge.EdgeShard, data: st.DataObject
) -> None:
    names = data.draw(st.lists(keys, min_size=1, max_size=3, unique=True))
    stored = data.draw(st.lists(values, min_size=1, max_size=3))
    flat = st.dictionaries(st.sampled_from(names), st.sampled_from(stored))
    nested = st.dictionaries(
        st.just("a"), st.dictionaries(st.sampled_from(["b", "b.c", "x y"]), st.sampled_from(stored))
    )
    payloads = data.draw(st.lists(st.one_of(flat, nested), min_size=1, max_size=5))
    key, value = data.draw(st.sampled_from([*names, "a.b", "a.b.c", "a.x y"])), data.draw(st.sampled_from(stored))
    written = json.dumps(value)
    alike = {value} if isinstance(value, str) else {value, written}
    expected = {n for n, each in enumerate(payloads, 1) if any(is_equal(at(each, key), one) for one in alike)}
    if isinstance(value, bool | str) or abs(value) < 2**53:
        for operator, wanted in (("=", expected), ("!=", {*range(1, len(payloads) + 1)} - expected)):
            where = parse_filter([f"{written_key(key)}{operator}{written}"])
            assert where is not None
            assert passing(local, engine, payloads, where) == wanted


ORDERS = {">=": comparison.ge, "<=": comparison.le, ">": comparison.gt, "<": comparison.lt}
large = st.one_of(st.integers(-(2**63), 2**64 - 1), *(st.integers(2**n - 9, 2**n - 1) for n in (54, 55, 63, 64)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=st.lists(large, min_size=1, max_size=4), operator=st.sampled_from(["=", "!=", *ORDERS]), data=st.data())
def test_a_condition_takes_no_whole_number_for_its_neighbour(
    local: QdrantClient, stored: list[int], operator: str, data: st.DataObject
) -> None:
    number = data.draw(st.sampled_from([near for one in stored for near in (one - 1, one, one + 1)]))
    try:
        where = parse_filter([f"n{operator}{number}"])
    except InputError:
        assert abs(number) > 2**53
        return
    local.delete("points", models.Filter())
    points = [models.PointStruct(id=n, vector={"v": [1.0]}, payload={"n": each}) for n, each in enumerate(stored)]
    local.upsert("points", points)
    found = {int(record.id) for record in local.scroll("points", where, limit=100)[0]}
    compare = {"=": comparison.eq, "!=": comparison.ne, **ORDERS}[operator]
    assert found == {n for n, each in enumerate(stored) if compare(each, number)}


WRITTEN = ["2020", "2020.5", "-1", "true", "True", "FALSE", '"2020"', '"true"', "new", "2024-03-01", "nan", "[", "-"]
STORED = [
    2020,
    2020.5,
    -1,
    True,
    False,
    "2020",
    "true",
    "True",
    "FALSE",
    "new",
    "2024-03-01",
    "2024-05-01",
    "nan",
    None,
]


def day(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def is_met(stored: Any, operator: str, written: str) -> bool:
    """Compare as the page on filters says, without the code under test."""
    if isinstance(stored, list):
        return any(is_met(one, operator, written) for one in stored)
    number = float(written) if written.lstrip("-").replace(".", "").isdigit() else None
    is_number = isinstance(stored, int | float) and not isinstance(stored, bool)
    if operator in ORDERS:
        if number is not None:
            return is_number and bool(ORDERS[operator](stored, number))
        dates = day(stored), day(written)
        return None not in dates and bool(ORDERS[operator](*dates))
    if written.startswith('"'):
        return bool(stored == written.strip('"'))
    if written.lower() in ("true", "false"):
        spelled = {written, written.lower(), written.capitalize(), written.upper()}
        return stored is (written.lower() == "true") or (isinstance(stored, str) and stored in spelled)
    return bool(stored == written) or (number is not None and is_number and stored == number)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_operator_compares_every_type_as_the_page_says(
    local: QdrantClient, engine: edge.EdgeShard, data: st.DataObject
) -> None:
    one = st.sampled_from([*STORED, None])
    stored = data.draw(st.lists(one | st.lists(one, max_size=3), min_size=1, max_size=6))
    operator, written = data.draw(st.sampled_from(["=", "!=", *ORDERS])), data.draw(st.sampled_from(WRITTEN))
    is_ordered = written.lstrip("-").replace(".", "").isdigit() or day(written) is not None or written == '"2020"'
    payloads = [{"k": value} for value in stored]
    if operator in ORDERS and not is_ordered:
        with pytest.raises(InputError, match="takes a number or a date"):
            parse_filter([f"k{operator}{written}"])
        return
    expected = {
        n
        for n, value in enumerate(stored, 1)
        if is_met(value, operator.removeprefix("!"), written.strip('"') if operator in ORDERS else written)
        is not (operator == "!=")
    }
    where = parse_filter([f"k{operator}{written}"])
    assert where is not None
    assert passing(local, engine, payloads, where) == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from([*models.PayloadSchemaType]), points=st.integers(0, 3))
def test_an_index_of_another_type_than_the_values_hides_none(
    local: QdrantClient, data: st.DataObject, kind: models.PayloadSchemaType, points: int
) -> None:
    one = st.sampled_from(STORED)
    stored = data.draw(st.lists(one | st.lists(one, max_size=3), min_size=1, max_size=6))
    operator, written = data.draw(st.sampled_from(["=", "!="])), data.draw(st.sampled_from(WRITTEN))
    index = {"k": models.PayloadIndexInfo(data_type=kind, points=points)}
    where = parse_filter([f"k{operator}{written}"], Keys(indexes=index, sample=tuple({"k": value} for value in stored)))
    local.delete("points", models.Filter())
    local.upsert("points", [models.PointStruct(id=n, vector={}, payload={"k": v}) for n, v in enumerate(stored)])
    found = {record.id for record in local.scroll("points", where)[0]}
    assert found == {n for n, value in enumerate(stored) if is_met(value, "=", written) is not (operator == "!=")}


@given(
    st.sampled_from(["year==2005", "year=>2025", "year=<2003", "year!==2005", "a=!b", "a<>b", "k=null", "k!=NULL"])
    | st.builds("{}{}{}".format, st.just("k"), st.text("=<>!", min_size=3, max_size=5), st.just("v"))
)
def test_what_is_not_an_operator_or_a_value_is_refused(condition: str) -> None:
    with pytest.raises(InputError, match=r"is not an operator; expected|null is not a value|expected key=value"):
        parse_filter([condition])


@pytest.mark.parametrize(
    "conditions",
    [
        ["a" + "[]" * 20_000 + "x=1"],
        ["a" + "[]" * 400 + "x=1"],
        ["a" + "[]" * 400 + "=1"],
        ["type=" + "[" * 200_000],
        ["a=1"] * (MAX_CONDITIONS + 1),
        ["a" * 2_000 + "=1"],
    ],
    ids=["brackets", "key", "steps", "value", "number", "name"],
)
def test_conditions_have_a_bounded_size(conditions: list[str]) -> None:
    start = time.process_time()
    with pytest.raises(InputError, match="expected at most"):
        parse_filter(conditions)
    assert time.process_time() - start < 0.5


def test_brackets_inside_a_value_are_a_text() -> None:
    assert parse_filter(["type=" + "[" * 4_000]) is not None


@pytest.mark.parametrize("key", ['q"q', "a\\b", '"a', '"a"b', '"a".', '\\"'])
def test_a_key_that_no_filter_can_name_is_refused_by_name(key: str) -> None:
    for refuse in (lambda: parse_filter([f"{key}=1"]), lambda: written_key(key), lambda: parse_indexes([key])):
        with pytest.raises(InputError, match="double quote or a backslash"):
            refuse()


def test_a_key_in_quotes_is_a_path_already() -> None:
    assert readings('"a"."b c"[0].d') == ('a."b c"[0].d',)
    assert readings("a.b") == ('"a.b"', "a.b")
    assert readings("visits[].year") == ('"visits[].year"', '"visits[]".year', "visits[].year")
    assert len(readings("https://a.b.c/d.e.f.g")) == 2


def test_what_is_in_arrays_is_reached(local: QdrantClient, engine: edge.EdgeShard) -> None:
    payloads = [
        {"visits": [{"year": 2019}, {"year": 2020}], "tags": ["a", "b"]},
        {"visits": [{"year": 2021}], "tags": ["c"]},
    ]
    for condition in ("visits[].year=2020", "visits[0].year<2020", "tags=a", "tags[]=b"):
        where = parse_filter([condition])
        assert where is not None
        assert passing(local, engine, payloads, where) == {1}, condition


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("day>=2024-03-01", {2, 3}),
        ("day<2024-03-01T08:00:00Z", {1, 2}),
        ("day>2024-06-01", {3}),
        ('year>"2019"', {2}),
        ("year>2019", {2}),
        ("year<=2019.5", {1}),
        ("stamp>=20240301", {2, 3}),
        ('stamp>="20240301"', {2, 3}),
    ],
)
def test_numbers_and_dates_are_ordered(
    local: QdrantClient, engine: edge.EdgeShard, condition: str, expected: set[int]
) -> None:
    payloads = [
        {"day": "2024-01-31", "year": 2019, "stamp": 20240229},
        {"day": "2024-03-01", "year": 2020, "stamp": 20240301},
        {"day": "2024-06-01T09:30:00+08:00", "year": "2021", "stamp": 20240302.0},
    ]
    where = parse_filter([condition])
    assert where is not None
    assert passing(local, engine, payloads, where) == expected


@pytest.mark.parametrize("condition", ["n>=x", "n>true", "n<2024-13-01", 'n<="x"', "n>NaN", f"n>{'9' * 400}"])
def test_what_has_no_order_is_refused(condition: str) -> None:
    with pytest.raises(InputError, match=r"takes a number or a date \(2024-03-01, 2024-03-01T08:00:00Z\)"):
        parse_filter([condition])


@pytest.fixture(params=["embedded", "server", *REAL])
def database(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    with open_database(request) as client:
        yield client


def filled(client: QdrantClient, payloads: list[dict[str, Any]], **config: Any) -> Collection:
    client.create_collection("c", vectors_config=VECTORS, **config)
    points = [models.PointStruct(id=n, vector={"v": [1.0]}, payload=each) for n, each in enumerate(payloads, 1)]
    client.upsert("c", points, wait=True)
    return Collection(client, "c")


METADATA: dict[str, Any] = {
    "dept": "内科",
    "source.system": "new",
    "入院 日期": "2024-03-01",
    "a=b": 1,
    "year": 2020.0,
    "ok": True,
}
LAYOUTS: dict[str, Any] = {
    "plain": lambda metadata: {"text": "发烧", **metadata},
    "langchain": lambda metadata: {"page_content": "发烧", "metadata": metadata},
    "haystack": lambda metadata: {"id": "d", "content": "发烧", "meta": metadata},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_an_overview_offers_finds_its_points_when_it_is_sent_back(database: QdrantClient, layout: str) -> None:
    other = dict.fromkeys(METADATA)
    collection = filled(database, [LAYOUTS[layout](METADATA), LAYOUTS[layout](other), LAYOUTS[layout]({'q"q': 1})])
    offered = overview(collection).keys
    assert offered.keys() == {"dept", "source.system", "入院 日期", '"a=b"', "year", "ok"}
    for key, (value,) in offered.items():
        sent = [str(value).lower() if isinstance(value, bool) else str(value)]
        sent += ["2020"] if key == "year" else []
        for one in sent:
            for operator, found in (("=", [1]), ("!=", [2, 3])):
                where = parse_filter([f"{key}{operator}{one}"], Keys.of(collection))
                assert [record.id for record in database.scroll("c", where)[0]] == found, (key, operator, one)


def test_payloads_of_two_tools_are_filtered_at_once(database: QdrantClient) -> None:
    payloads = [LAYOUTS[layout]({"dept": dept}) for layout in LAYOUTS for dept in ("内科", "外科")]
    collection = filled(database, payloads)
    keys = Keys.of(collection)
    for condition, found in (("dept=内科", [1, 3, 5]), ("dept!=内科", [2, 4, 6]), ("metadata.dept=内科", [3])):
        assert [record.id for record in database.scroll("c", parse_filter([condition], keys))[0]] == found


TOOLS: dict[str, Any] = {
    **LAYOUTS,
    "care": lambda metadata: {"text": "发烧", "doc_id": "d", CARE_KEY: {"chunk": 0}, **metadata},
    "llama-index": lambda metadata: {"_node_content": '{"text": "发烧"}', "doc_id": "d", **metadata},
    "dify": lambda metadata: {
        "page_content": "发烧",
        "metadata": {"document_id": "d", "dataset_id": "s", **metadata},
    },
    "langchain-js": lambda metadata: {"content": "发烧", "metadata": metadata},
    "open-webui": lambda metadata: {"text": "发烧", "metadata": metadata},
    "ragflow": lambda metadata: {"content_with_weight": "发烧", "doc_id": "d", **metadata},
    "mem0": lambda metadata: {"data": "发烧", "hash": "h", **metadata},
    "spring-ai": lambda metadata: {"doc_content": "发烧", **metadata},
}


@pytest.mark.parametrize("first", TOOLS)
def test_a_condition_reaches_the_few_points_of_every_other_tool(database: QdrantClient, first: str) -> None:
    """Their ids are the largest ones, so that no sample of the first points shows them."""
    tools = [first] * 40 + [tool for tool in TOOLS if tool != first] * 2
    metadata: list[dict[str, Any]] = [{"dept": "内外儿"[n % 3], "visit": {"year": n}} for n in range(len(tools))]
    collection = filled(database, [TOOLS[tool](each) for tool, each in zip(tools, metadata, strict=True)])
    assert [read_hit(record).metadata["dept"] for record in database.scroll("c", limit=99)[0]] == [
        each["dept"] for each in metadata
    ]
    keys = Keys.of(collection)
    for condition, passes in (
        ("dept=内", lambda each: each["dept"] == "内"),
        ("dept!=内", lambda each: each["dept"] != "内"),
        ("visit.year>=45", lambda each: each["visit"]["year"] >= 45),
    ):
        found = database.scroll("c", parse_filter([condition], keys), limit=99)[0]
        assert [record.id for record in found] == [n for n, each in enumerate(metadata, 1) if passes(each)], condition


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_empty_has_no_value_or_an_empty_text_alone(database: QdrantClient, layout: str) -> None:
    empty: list[Any] = ["", None, []]
    payloads = [{"k": value} for value in (*empty, ["", "a"], ["", ""], "a", ["a"], 0, False, {"b": ""})] + [{}]
    collection = filled(database, [LAYOUTS[layout](payload) for payload in payloads])
    where = models.Filter(must=[Comparison("k", "empty", [], "k is empty").within(Keys.of(collection))])
    assert [record.id for record in database.scroll("c", where)[0]] == [1, 2, 3, len(payloads)]


@pytest.mark.parametrize("database", ["server", *REAL], indirect=True)
def test_an_index_of_a_key_with_a_dot_serves_its_filters_in_strict_mode(database: QdrantClient) -> None:
    collection = filled(database, [{"source.system": "new", "patient": {"age": 3}}, {"source.system": "old"}])
    collection.create_indexes(index_schemas(parse_indexes(["source.system", "patient.age=integer", '"x = y"=float'])))
    strict = models.StrictModeConfig(enabled=True, unindexed_filtering_retrieve=False)
    collection.update("strict", strict_mode_config=strict)
    keys = Keys.of(Collection(database, "c"))
    for condition, found in (
        ("source.system=new", [1]),
        ("source.system!=new", [2]),
        ("patient.age>2", [1]),
        ('"x = y"<2', []),
    ):
        assert [record.id for record in database.scroll("c", parse_filter([condition], keys))[0]] == found


def test_strict_mode_says_which_index_to_make() -> None:
    keys = Keys(indexes={"dept": models.PayloadIndexInfo(data_type="keyword", points=1)}, only_indexed=True)
    assert parse_filter(["dept=内科"], keys) is not None
    for condition in ("year=2020", "year!=2020", "year>=2020"):
        with pytest.raises(InputError, match=r"key 'year' has no payload index.*--index year=integer"):
            parse_filter([condition], keys)


@pytest.mark.parametrize(
    ("kind", "value", "conditions", "fitting"),
    [
        ("integer", 3.5, ["k>=3", "k=3.5", "k!=3.5"], "float"),
        ("datetime", 2020, ["k>=2019", "k=2020", "k>=2019-01-01"], "float"),
        ("datetime", 2020.5, ["k<2021"], "float"),
        ("integer", "2024-03-01", ["k>=2024-01-01"], "datetime"),
        ("float", "2024-03-01", ["k<2025-01-01"], "datetime"),
    ],
)
@pytest.mark.parametrize("found", [True, False])
def test_a_value_that_an_index_leaves_out_is_said(
    kind: str, value: Any, conditions: list[str], fitting: str, found: bool
) -> None:
    with closing(QdrantClient(":memory:")) as client:
        collection = filled(client, [{"text": "发烧", "k": value}])
        index = models.PayloadIndexInfo(data_type=kind, points=1)
        keys = Keys(indexes={"k": index}, sample=({"k": value},))
        for condition in conditions:
            said = notice(collection, [condition], keys, found=found)
            assert said is not None and f"of type {kind}, leaves out" in said, condition
        assert "leaves out" not in str(notice(collection, ["k=other"], keys, found=found))
        whole = Keys(indexes={"k": models.PayloadIndexInfo(data_type=fitting, points=1)}, sample=({"k": value},))
        assert "leaves out" not in str(notice(collection, conditions, whole, found=found))


def test_a_date_without_hyphens_is_a_number_unless_it_is_a_text(database: QdrantClient) -> None:
    collection = filled(database, [{"text": "发烧", "day": "2024-03-01"}])
    keys = Keys.of(collection)
    said = notice(collection, ["day>=20240101"], keys, found=False)
    assert said is not None and "'day' holds texts, such as '2024-03-01', and the condition compares numbers" in said
    assert notice(collection, ['day>="20250101"'], keys, found=False) is None


def test_a_condition_that_rules_nothing_out_is_said(database: QdrantClient) -> None:
    collection = filled(
        database, [{"text": "发烧", "dept": "内科", "day": "2024-03-01", "old.day": "3/1/2024", "none": None}]
    )
    keys = Keys.of(collection)
    assert notice(collection, ["dept!=外科", "none!=x", "day>=2030-01-01"], keys, found=True) is None
    said = notice(collection, ["source.system!=new"], keys, found=True)
    assert said is not None
    assert said.startswith("no point of 'c' has 'source.system' (some keys: day, dept, none, old.day)")
    assert said.endswith("so 'source.system!=new' rules nothing out")
    assert notice(collection, ["day>=2030-01-01"], keys, found=False) is None
    late = notice(collection, ["old.day>=2024-01-01"], keys, found=False)
    assert late is not None and "'old.day' holds texts, such as '3/1/2024'" in late and "compares dates" in late


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("year=abc", "'year' holds numbers, such as 2020, and the condition compares texts"),
        ("ok=yes", "'ok' holds booleans, such as true, and the condition compares texts"),
        ("year=true", "'year' holds numbers, such as 2020, and the condition compares booleans"),
        ("dept>=2020", "'dept' holds texts, such as '内科', and the condition compares numbers"),
        ("authors=李", "'authors' holds objects; name a key inside them, such as authors[].name"),
        ("authors.name=李", "'authors' holds a list: write 'authors[].name'"),
    ],
)
def test_a_value_of_another_type_is_said(database: QdrantClient, condition: str, said: str) -> None:
    payload = {"text": "发烧", "year": 2020, "ok": True, "dept": "内科", "authors": [{"name": "李"}]}
    collection = filled(database, [payload])
    note = notice(collection, [condition], Keys.of(collection), found=False)
    assert note is not None and said in note


@pytest.mark.parametrize("quotes", ["''", "‘’", "“”", "``", "「」"])
@pytest.mark.parametrize("operator", ["=", "!="])
def test_quotes_that_no_value_has_are_said(database: QdrantClient, quotes: str, operator: str) -> None:
    """They are part of the value: a text may begin and end with them."""
    first, last = quotes
    collection = filled(database, [{"text": "发烧", "year": 2005, "dept": "内科", "team": f"{first}一{last}"}])
    keys = Keys.of(collection)
    for written in (f"year{operator}{first}2005{last}", f"dept{operator}{first}内科{last}"):
        note = notice(collection, [written], keys, found=operator == "!=")
        assert note is not None and "leave them out" in note
        assert note.endswith("rules nothing out") == (operator == "!=")
    assert notice(collection, [f"team{operator}{first}一{last}", "dept=内科"], keys, found=operator == "!=") is None


def test_an_index_with_few_points_hides_no_other_path() -> None:
    info = models.PayloadIndexInfo(data_type=models.PayloadSchemaType.KEYWORD, points=1)
    payloads: list[dict[str, Any]] = [LAYOUTS["langchain"]({"dept": "A"}), {"text": "发烧", "dept": "A"}]
    with closing(QdrantClient(":memory:")) as client:
        collection = filled(client, [*payloads, LAYOUTS["langchain"]({"dept": "B"})])
        read = Keys.of(collection)
        keys = Keys(read.prefixes, {"dept": info}, sample=read.sample)
        for condition, found in (("dept=A", [1, 2]), ("dept!=A", [3])):
            assert [record.id for record in client.scroll("c", parse_filter([condition], keys))[0]] == found
