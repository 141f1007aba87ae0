"""The faults, keys and limits of the stand-in; `test_recorded` compares its answers with those of a real server."""

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

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
