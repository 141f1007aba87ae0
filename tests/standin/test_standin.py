"""The stand-in against qdrant-client, as everybody uses it."""

from collections.abc import Callable

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from tests.databases import require_added_vectors
from tests.standin import StandIn
from tests.standin.faults import Kind

COSINE = models.Distance.COSINE
DENSE = {"dense": models.VectorParams(size=4, distance=COSINE)}
SPARSE = {"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)}


def points(count: int) -> list[models.PointStruct]:
    rng = np.random.default_rng(0)
    return [
        models.PointStruct(
            id=number,
            vector={
                "dense": rng.normal(size=4).tolist(),
                "bm25": models.SparseVector(indices=[number % 3], values=[1.0]),
            },
            payload={"n": number, "even": number % 2 == 0},
        )
        for number in range(count)
    ]


def fill(client: QdrantClient) -> None:
    client.create_collection("c", vectors_config=DENSE, sparse_vectors_config=SPARSE, metadata={"a": 1})
    client.upsert("c", points(20), wait=True)


def connect(server: StandIn, api_key: str | None = None, timeout: int = 20) -> QdrantClient:
    return QdrantClient(url=server.url, api_key=api_key, timeout=timeout, check_compatibility=False)


@pytest.fixture
def client(server: StandIn) -> QdrantClient:
    return connect(server)


EVEN = models.Filter(must=[models.FieldCondition(key="even", match=models.MatchValue(value=True))])
HYBRID = [
    models.Prefetch(query=[1.0, 0.0, 0.0, 0.0], using="dense", limit=5),
    models.Prefetch(query=models.SparseVector(indices=[1], values=[1.0]), using="bm25", limit=5),
]
READS: list[Callable[[QdrantClient], object]] = [
    lambda c: c.retrieve("c", [1, 5, 99], with_vectors=True),
    lambda c: c.scroll("c", scroll_filter=EVEN, limit=4, offset=3, with_payload=["n"]),
    lambda c: c.count("c", count_filter=models.Filter(must=[models.HasVectorCondition(has_vector="dense")])),
    lambda c: c.query_points("c", query=[1.0, 0.0, 0.0, 0.0], using="dense", query_filter=EVEN),
    lambda c: c.query_points("c", query=models.FusionQuery(fusion=models.Fusion.RRF), prefetch=HYBRID, limit=6),
    lambda c: c.query_batch_points("c", [models.QueryRequest(query=3, using="dense", limit=2)] * 2),
    lambda c: c.query_points_groups("c", group_by="even", query=[1.0, 0.0, 0.0, 0.0], using="dense"),
    lambda c: (c.collection_exists("c"), c.collection_exists("d"), c.get_collections()),
]


@pytest.mark.parametrize("read", READS)
def test_reads_give_what_the_engine_gives(read: Callable[[QdrantClient], object]) -> None:
    embedded = QdrantClient(":memory:")
    with StandIn() as standin:
        for client in (embedded, served := connect(standin)):
            fill(client)
        assert read(served) == read(embedded)


def test_writes_reach_the_engine(client: QdrantClient) -> None:
    fill(client)
    client.update_vectors("c", [models.PointVectors(id=1, vector={"dense": [0.0, 1.0, 0.0, 0.0]})])
    client.delete_vectors("c", ["bm25"], [1])
    client.set_payload("c", {"x": {"y z": 1, "k": 2}}, points=[1])
    client.delete_payload("c", ['x."y z"'], points=[1])
    client.batch_update_points(
        "c",
        [models.OverwritePayloadOperation(overwrite_payload=models.SetPayload(payload={"z": 1}, points=[2]))],
    )
    client.clear_payload("c", [3])
    client.delete("c", EVEN)
    client.delete("c", models.PointIdsList(points=[5]))
    one, two, three = client.retrieve("c", [1, 2, 3], with_vectors=True)
    assert one.vector == {"dense": [0.0, 1.0, 0.0, 0.0]}
    assert one.payload == {"n": 1, "even": False, "x": {"k": 2}}
    assert (two.payload, three.payload) == ({"z": 1}, {})
    assert client.count("c").count == 10


def test_settings_that_the_engine_forgets_are_reported(client: QdrantClient) -> None:
    client.create_collection(
        "c", vectors_config=DENSE, metadata={"a": 1}, shard_number=3, hnsw_config=models.HnswConfigDiff(m=4)
    )
    client.create_payload_index("c", "n", models.PayloadSchemaType.INTEGER)
    diff = models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=8), on_disk=True)
    client.update_collection("c", vectors_config={"dense": diff}, metadata={"b": 2})
    info = client.get_collection("c")
    assert info.config.metadata == {"a": 1, "b": 2}
    assert (info.config.params.shard_number, info.config.hnsw_config.m) == (3, 4)
    assert isinstance(info.config.params.vectors, dict)
    assert info.config.params.vectors["dense"].on_disk
    assert info.payload_schema["n"].data_type == models.PayloadSchemaType.INTEGER


def test_named_vectors_come_and_go_on_new_servers_only(client: QdrantClient) -> None:
    config = models.DenseVectorNameConfig(dense=models.DenseVectorConfig(size=3, distance=COSINE))
    require_added_vectors(client)
    client.create_collection("c", vectors_config=DENSE)
    client.create_vector_name("c", "new", config)
    assert "new" in (client.get_collection("c").config.params.vectors or {})  # type: ignore[operator]
    client.delete_vector_name("c", "new")
    with StandIn(version="1.17.9") as old:
        old_client = connect(old)
        assert old_client.info().version == "1.17.9"
        old_client.create_collection("c", vectors_config=DENSE)
        for change in (
            lambda: old_client.create_vector_name("c", "new", config),
            lambda: old_client.delete_vector_name("c", "dense"),
        ):
            with pytest.raises(UnexpectedResponse) as refused:
                change()
            assert (refused.value.status_code, refused.value.content) == (404, b"")


def test_aliases(client: QdrantClient) -> None:
    fill(client)
    create = models.CreateAlias(collection_name="c", alias_name="live")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
    assert client.count("live").count == 20
    assert [alias.alias_name for alias in client.get_aliases().aliases] == ["live"]


@pytest.mark.parametrize(
    ("kind", "error", "applied"),
    [
        ("500", UnexpectedResponse, False),
        ("429", ResourceExhaustedResponse, False),
        ("timeout", ResponseHandlingException, False),
        ("reset", ResponseHandlingException, False),
        ("drop", ResponseHandlingException, True),
    ],
)
def test_faults(server: StandIn, client: QdrantClient, kind: Kind, error: type[Exception], applied: bool) -> None:
    fill(client)
    server.faults.add(kind, method="PUT", path="/points$", seconds=600)
    with pytest.raises(error):
        connect(server, timeout=1).upsert("c", [models.PointStruct(id=100, vector={})], wait=True)
    assert client.count("c").count == 20 + applied
    client.upsert("c", [models.PointStruct(id=100, vector={})], wait=True)
    assert client.count("c").count == 21


def test_a_yellow_collection(server: StandIn, client: QdrantClient) -> None:
    fill(client)
    server.faults.add("yellow", path="/c$", times=2)
    assert [client.get_collection("c").status.value for _ in range(2)] == ["yellow", "yellow"]


def test_wait_timeout_is_a_status(server: StandIn, client: QdrantClient) -> None:
    fill(client)
    server.faults.add("wait_timeout", method="PUT")
    result = client.upsert("c", [models.PointStruct(id=100, vector={})], wait=True)
    assert result.status is models.UpdateStatus.WAIT_TIMEOUT
    assert client.count("c").count == 21


def test_a_fault_waits_for_its_turn(server: StandIn, client: QdrantClient) -> None:
    server.faults.add("500", skip=1, times=2)
    outcomes = []
    for _ in range(4):
        try:
            client.get_collections()
            outcomes.append("ok")
        except UnexpectedResponse:
            outcomes.append("500")
    assert outcomes == ["ok", "500", "500", "ok"]


def test_gone_until_told(server: StandIn, client: QdrantClient) -> None:
    fill(client)
    server.go_away()
    with pytest.raises(ResponseHandlingException):
        client.count("c")
    server.come_back()
    assert client.count("c").count == 20


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_keys(server: StandIn) -> None:
    server.api_key, server.read_only_key = "all", "read"
    with pytest.raises(UnexpectedResponse, match="401"):
        connect(server).get_collections()
    fill(connect(server, "all"))
    reader = connect(server, "read")
    assert reader.scroll("c", limit=3)[0]
    with pytest.raises(UnexpectedResponse, match="403"):
        reader.delete("c", models.PointIdsList(points=[1]))


def test_a_body_above_the_limit(server: StandIn) -> None:
    server.max_bytes = 2_000
    with pytest.raises(UnexpectedResponse, match="413"):
        fill(connect(server))


@pytest.mark.parametrize(
    "refused",
    [
        lambda c: c.upsert("c", points(6)),
        lambda c: c.scroll("c", limit=51),
        lambda c: c.scroll("c", scroll_filter=EVEN),
        lambda c: c.delete("c", EVEN),
    ],
)
def test_strict_mode(client: QdrantClient, refused: Callable[[QdrantClient], object]) -> None:
    fill(client)
    strict = models.StrictModeConfig(
        enabled=True,
        upsert_max_batchsize=5,
        max_query_limit=50,
        unindexed_filtering_retrieve=False,
        unindexed_filtering_update=False,
    )
    client.update_collection("c", strict_mode_config=strict)
    with pytest.raises(UnexpectedResponse, match=r"40[03]"):
        refused(client)
    client.create_payload_index("c", "even", models.PayloadSchemaType.BOOL)
    assert client.scroll("c", scroll_filter=EVEN, limit=50)[0]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_points_count": 20}, "Max points count limit of 20 reached"),
        ({"max_collection_vector_size_bytes": 20 * 4 * 4}, "Max vector storage size limit"),
    ],
)
def test_a_collection_that_is_as_large_as_it_may_be(client: QdrantClient, limits: dict[str, int], message: str) -> None:
    fill(client)
    vectors = models.UpdateVectors(points=[models.PointVectors(id=1, vector={"dense": [1.0, 0.0, 0.0, 0.0]})])
    write = models.UpdateVectorsOperation(update_vectors=vectors)
    roomy = {name: limit + 1 for name, limit in limits.items()}
    client.update_collection("c", strict_mode_config=models.StrictModeConfig(enabled=True, **roomy))
    client.batch_update_points("c", [write])
    client.update_collection("c", strict_mode_config=models.StrictModeConfig(enabled=True, **limits))
    for refused in (lambda: client.upsert("c", points(1)), lambda: client.batch_update_points("c", [write])):
        with pytest.raises(UnexpectedResponse, match=message):
            # A server counts what it holds at every 32nd write.
            for _ in range(33):
                refused()
