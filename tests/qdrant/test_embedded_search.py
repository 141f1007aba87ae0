"""Searches on arrays against qdrant-client's own, while points come, change and go."""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from qdrant_client import QdrantClient, models

from care_qdrant.encoders import bm25
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.embedded_search import search_arrays
from care_qdrant.search.fusion import Fusion, fused_request
from tests.tiny import medical_texts

TEXTS = medical_texts(120)
QUERIES = [TEXTS[3][:12], TEXTS[70][:30], "HbA1c 6.5%", "没有这样的词xyz"]
EVEN = models.Filter(must=[models.FieldCondition(key="even", match=models.MatchValue(value=True))])
NOT_TEN = models.Filter(must_not=[models.HasIdCondition(has_id=list(range(10)))])
SOME = models.Filter(must=[models.HasIdCondition(has_id=[3, 4, 70, 999]), *(EVEN.must or [])])  # type: ignore[misc]
FUSIONS: list[Fusion] = ["linear", "dbsf", "rrf"]
FILTERS = [None, EVEN, NOT_TEN, SOME]


def _point(number: int, text: str) -> models.PointStruct:
    sparse = bm25.document_vector(text, average_length=40.0)
    dense = [random.Random(text + str(axis)).uniform(-1, 1) for axis in range(4)]
    return models.PointStruct(id=number, vector={"d": dense, "bm25": sparse}, payload={"even": number % 2 == 0})


def _create(client: QdrantClient) -> None:
    client.create_collection(
        "corpus",
        vectors_config={"d": models.VectorParams(size=4, distance=models.Distance.COSINE)},
        sparse_vectors_config={"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    client.upsert("corpus", [_point(number, text) for number, text in enumerate(TEXTS)])


def _requests() -> list[models.QueryRequest]:
    requests = []
    for text in QUERIES:
        for where in FILTERS:
            sparse = models.Prefetch(query=bm25.query_vector(text), using="bm25", filter=where)
            dense = models.Prefetch(query=[0.1, 0.2, -0.3, 0.4], using="d", filter=where)
            plain = models.QueryRequest(query=sparse.query, using="bm25", filter=where, limit=7, with_payload=True)
            requests += [plain, plain.model_copy(update={"offset": 3, "score_threshold": 1.0})]
            for fusion in FUSIONS:
                requests.append(fused_request(dense, sparse, fusion=fusion, alpha=0.4, limit=7))
    return requests


def _own(client: QdrantClient) -> list[list[tuple[object, float, object]]]:
    answers = client.query_batch_points("corpus", _requests())
    return [[(point.id, point.score, point.payload) for point in answer.points] for answer in answers]


def _on_arrays(client: QdrantClient) -> list[list[tuple[object, float, object]]]:
    answers = [
        search_arrays(client, "corpus", request) for request in _requests() if request.prefetch or _terms(request)
    ]
    assert None not in answers
    found = Collection(client, "corpus").search("searching", _requests())
    return [[(point.id, point.score, point.payload) for point in points] for points in found]


def _terms(request: models.QueryRequest) -> bool:
    return isinstance(request.query, models.SparseVector) and bool(request.query.indices)


CHANGES: dict[str, Callable[[QdrantClient], object]] = {
    "nothing": lambda _: None,
    "points with another text": lambda client: client.upsert("corpus", [_point(5, TEXTS[70]), _point(6, TEXTS[3])]),
    "new points": lambda client: client.upsert(
        "corpus", [_point(500 + n, text) for n, text in enumerate(TEXTS[60:90])]
    ),
    "a payload": lambda client: client.set_payload("corpus", {"even": True}, points=[3, 71]),
    "a vector": lambda client: client.update_vectors(
        "corpus",
        [models.PointVectors(id=70, vector={"bm25": bm25.document_vector(TEXTS[9], average_length=40.0)})],
    ),
    "a vector taken away": lambda client: client.delete_vectors("corpus", ["bm25"], [3]),
    "deleted points": lambda client: client.delete("corpus", [4, 501, 502]),
    "another collection of the name": lambda client: (client.delete_collection("corpus"), _create(client)),
}


def test_scores_stay_equal_while_points_come_change_and_go(tmp_path: Path) -> None:
    """Two databases get the same writes; one searches on arrays, the other as qdrant-client does."""
    with closing(QdrantClient(path=str(tmp_path))) as fast, closing(QdrantClient(":memory:")) as own:
        for client in (fast, own):
            _create(client)
        for name, change in CHANGES.items():
            for client in (fast, own):
                change(client)
            found = _on_arrays(fast)
            assert found == _own(own), name
            assert any(found)


def test_what_is_no_embedded_collection_is_left_alone() -> None:
    with closing(QdrantClient(":memory:")) as client:
        assert search_arrays(client, "missing", _requests()[0]) is None
