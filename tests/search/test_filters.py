"""Filtered searches: payload indexes, and the graph's way through points that a filter rules out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant import Document, IngestSettings, ingest
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import index_schemas, parse_indexes
from care_qdrant.search.conditions import Keys, keys_of, notice, parse_filter
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolved import ResolvedCollection, StoreConfig, resolve_vectors
from tests.databases import REAL, open_database
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts

ACORN_SINCE = (1, 16)
POINTS, DIM, TOP_K = 12_000, 32, 10
RARE = models.Filter(must=[models.FieldCondition(key="group", match=models.MatchValue(value="g3"))])


@pytest.fixture(scope="module")
def standin() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    with open_database(request) as client:
        yield client


def resolve(client: QdrantClient, name: str) -> ResolvedCollection:
    schema = Collection(client, name).schema
    return resolve_vectors(Collection(client, name), schema, StoreConfig(vector_name="v"), checked_at=0.0)


def fill_with_a_graph(client: QdrantClient) -> list[list[float]]:
    """Make a collection of random vectors in ten groups, with an index and a graph; return queries."""
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((rows, DIM)).astype(np.float32) for rows in (POINTS, 50))
    Collection(client, "groups").create(
        vectors_config={"v": models.VectorParams(size=DIM, distance=models.Distance.COSINE)},
        hnsw_config=models.HnswConfigDiff(full_scan_threshold=10),
        optimizers_config=models.OptimizersConfigDiff(indexing_threshold=100, default_segment_number=1),
    )
    for start in range(0, POINTS, 2_000):
        batch = models.Batch(
            ids=list(range(start, start + 2_000)),
            vectors={"v": vectors[start : start + 2_000].tolist()},
            payloads=[{"group": f"g{number % 10}"} for number in range(start, start + 2_000)],
        )
        client.upsert("groups", batch, wait=True)
    Collection(client, "groups").wait_for_optimizer(120)
    Collection(client, "groups").create_indexes({"group": models.PayloadSchemaType.KEYWORD})
    Collection(client, "groups").wait_for_optimizer(120)
    rows: list[list[float]] = queries.tolist()
    return rows


def recall(client: QdrantClient, queries: list[list[float]], params: models.SearchParams | None) -> float:
    """Return the fraction of the ten nearest points of a group that searches find."""
    resolved = resolve(client, "groups")

    def ids(params: models.SearchParams | None) -> list[set[str]]:
        found = find(resolved, [Query(query, None, TOP_K, RARE, params) for query in queries])
        return [{hit.point_id for hit in hits} for [hits] in found]

    exact = ids(models.SearchParams(exact=True))
    return sum(len(a & b) for a, b in zip(exact, ids(params), strict=True)) / (TOP_K * len(queries))


def test_a_filtered_search_of_a_graph_finds_what_passes(real: QdrantClient) -> None:
    queries = fill_with_a_graph(real)
    off = models.SearchParams(acorn=models.AcornSearchParams(enable=False))
    plain, ours = recall(real, queries, off), recall(real, queries, None)
    assert ours > 0.9
    assert ours > plain + 0.1


def with_graph(client: QdrantClient, name: str) -> ResolvedCollection:
    """Return a collection whose server says that it has a graph."""
    Collection(client, name).create(vectors_config={"v": models.VectorParams(size=2, distance=models.Distance.DOT)})
    Collection(client, name).create_indexes({"group": models.PayloadSchemaType.KEYWORD})
    schema = replace(Collection(client, name).schema, has_index=True, points=20_000)
    return resolve_vectors(Collection(client, name), schema, StoreConfig(vector_name="v"), checked_at=0.0)


def _params(
    resolved: ResolvedCollection, conditions: models.Filter | None, params: models.SearchParams | None
) -> models.SearchParams | None:
    [request] = Query([1.0, 0.0], None, TOP_K, conditions, params).requests(resolved)
    return request.params


def test_acorn_is_asked_for_where_a_graph_is_filtered(standin: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    with open_client(url=standin.url) as client:
        resolved = with_graph(client, "acorn")
    asked = _params(resolved, RARE, models.SearchParams(hnsw_ef=64))
    assert asked is not None and asked.acorn is not None and (asked.acorn.enable, asked.hnsw_ef) == (True, 64)
    off = models.SearchParams(acorn=models.AcornSearchParams(enable=False))
    exact = models.SearchParams(exact=True)
    for given in (off, exact):
        assert _params(resolved, RARE, given) == given
    assert _params(resolved, None, None) is None
    without = replace(resolved, schema=replace(resolved.schema, has_index=False))
    assert _params(without, RARE, None) is None
    assert caplog.messages == []


def test_a_filter_without_an_index_is_told_once(standin: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    with open_client(url=standin.url) as client:
        resolved = with_graph(client, "told")
    filters = [parse_filter(["year>=2020", "group=g3"]), parse_filter(["year<2000"])]
    for conditions in filters:
        _params(resolved, conditions, None)
    [message] = caplog.messages
    assert "asks for 'year' without a payload index" in message
    caplog.clear()
    few = replace(resolved, schema=replace(resolved.schema, points=500), told_keys=set())
    _params(few, filters[0], None)
    assert caplog.messages == []


@pytest.mark.parametrize(("kind", "value"), [("integer", 2020), ("tenant", "2020")])
def test_an_index_says_which_kind_of_value_a_condition_means(real: QdrantClient, kind: str, value: str | int) -> None:
    """A server in strict mode refuses the other kind, which the index does not serve."""
    collection = Collection(real, "typed")
    collection.create(vectors_config={})
    collection.create_indexes(index_schemas(parse_indexes([f"year={kind}"])))
    strict = models.StrictModeConfig(enabled=True, unindexed_filtering_retrieve=False)
    collection.update("strict", strict_mode_config=strict)
    keys = Keys.of(Collection(real, "typed"))
    parsed = parse_filter(["year=2020"], keys)
    assert parsed == models.Filter(must=[models.FieldCondition(key="year", match=models.MatchValue(value=value))])
    assert real.scroll("typed", parsed)[0] == []
    real.upsert("typed", [models.PointStruct(id=1, vector={}, payload={"year": "2020"})], wait=True)
    assert len(real.scroll("typed", parsed)[0]) == (kind == "tenant")
    assert bool(notice(collection, ["year=2020"], keys, found=False)) == (kind == "integer")


@pytest.mark.parametrize("kind", ["keyword", "tenant", "text", "uuid", "bool"])
def test_numbers_under_an_index_of_another_type_are_found(real: QdrantClient, kind: str) -> None:
    """``--index year`` makes an index of texts."""
    collection = Collection(real, "typed")
    collection.create(vectors_config={})
    collection.create_indexes(index_schemas(parse_indexes([f"year={kind}"])))
    real.upsert(
        "typed", [models.PointStruct(id=year, vector={}, payload={"year": year}) for year in (2020, 2021)], True
    )
    for condition, found in (("year=2020", [2020]), ("year!=2020", [2021])):
        where = parse_filter([condition], Keys.of(Collection(real, "typed")))
        assert [record.id for record in real.scroll("typed", where)[0]] == found


def test_the_keys_of_a_filter_are_those_at_any_depth() -> None:
    one = models.FieldCondition(key="a", match=models.MatchValue(value=1))
    inner = models.Filter(should=[models.FieldCondition(key="b", match=models.MatchValue(value=1))])
    nested = models.NestedCondition(nested=models.Nested(key="c", filter=models.Filter(must_not=[one])))
    assert keys_of(models.Filter(must=[one, inner], must_not=[nested])) == {"a", "b", "c[].a"}
    assert keys_of(models.Filter(must=one)) == {"a"}


def test_indexes_are_created_before_the_first_point_and_later(standin: StandIn) -> None:
    documents = [
        Document(f"d{n}", text, metadata={"dept": "内科", "year": n}) for n, text in enumerate(medical_texts(5))
    ]
    with open_client(url=standin.url) as client:
        for given in (["dept=tenant"], ["dept=tenant", "year=integer"]):
            ingest(documents, HashModel(), client, "corpus", settings=IngestSettings(indexes=parse_indexes(given)))
        indexes = client.get_collection("corpus").payload_schema
    assert {"dept", "year", "doc_id"} <= indexes.keys()
    assert indexes["year"].data_type is models.PayloadSchemaType.INTEGER
    assert isinstance(indexes["dept"].params, models.KeywordIndexParams) and indexes["dept"].params.is_tenant


def test_an_index_without_effect_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_client(path=tmp_path / "qdrant") as client:
        settings = IngestSettings(indexes={"dept": "keyword"})
        ingest([Document("d", "糖尿病")], HashModel(), client, "corpus", settings=settings)
    assert "--index has no effect here" in caplog.text


def test_an_unknown_type_of_an_index_is_refused() -> None:
    assert parse_indexes(["a", "b.c=integer"]) == {"a": "keyword", "b.c": "integer"}
    with pytest.raises(InputError, match="--index 'a=number': expected KEY or KEY=TYPE"):
        parse_indexes(["a=number"])
