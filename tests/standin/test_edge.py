"""The engine for benchmarks of size against NumPy, through the client."""

from collections.abc import Iterator
from uuid import UUID

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from tests.standin.edge import EdgeEngine
from tests.standin.server import StandIn

COUNT, DIM = 300, 16
IDS = [str(UUID(int=number)) for number in range(COUNT)]


def unit_rows(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


VECTORS = unit_rows(COUNT, 0)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantClient]:
    with StandIn(engine=EdgeEngine, path=str(tmp_path_factory.mktemp("edge"))) as server:
        client = QdrantClient(url=server.url, check_compatibility=False)
        client.create_collection(
            "c",
            vectors_config={"dense": models.VectorParams(size=DIM, distance=models.Distance.COSINE)},
            sparse_vectors_config={"terms": models.SparseVectorParams(modifier=models.Modifier.IDF)},
            metadata={"a": 1},
        )
        terms = [models.SparseVector(indices=[number % 7], values=[1.0]) for number in range(COUNT)]
        points = [
            models.PointStruct(id=id_, vector={"dense": row.tolist(), "terms": sparse}, payload={"n": number})
            for number, (id_, row, sparse) in enumerate(zip(IDS, VECTORS, terms, strict=True))
        ]
        client.upsert("c", points, wait=True)
        yield client
        client.close()


def test_the_nearest_are_those_of_numpy(client: QdrantClient) -> None:
    queries = unit_rows(5, 1)
    requests = [models.QueryRequest(query=row.tolist(), using="dense", limit=10, with_payload=True) for row in queries]
    for row, answer in zip(queries, client.query_batch_points("c", requests), strict=True):
        cosines = VECTORS @ row
        best = np.argsort(-cosines)[:10]
        assert [(point.payload or {})["n"] for point in answer.points] == best.tolist()
        assert [point.score for point in answer.points] == pytest.approx(cosines[best].tolist(), abs=1e-6)


def test_only_among_the_ids_of_a_filter(client: QdrantClient) -> None:
    among = models.Filter(must=[models.HasIdCondition(has_id=[IDS[3], IDS[200]])])
    points = client.query_points("c", query=VECTORS[3].tolist(), using="dense", query_filter=among).points
    assert [point.id for point in points] == [IDS[3], IDS[200]]


def test_terms_find_their_documents(client: QdrantClient) -> None:
    query = models.SparseVector(indices=[6], values=[1.0])
    points = client.query_points("c", query=query, using="terms", limit=COUNT, with_payload=True).points
    assert {(point.payload or {})["n"] % 7 for point in points} == {6}


def test_points_are_counted_and_read_back(client: QdrantClient) -> None:
    has = models.Filter(must=[models.HasVectorCondition(has_vector="dense")])
    assert client.count("c", has).count == COUNT
    assert [(record.id, record.payload) for record in client.retrieve("c", [IDS[5]])] == [(IDS[5], {"n": 5})]
    assert client.get_collection("c").config.metadata == {"a": 1}


def test_what_is_no_part_of_it_is_refused(client: QdrantClient) -> None:
    with pytest.raises(UnexpectedResponse, match="400"):
        client.scroll("c")
