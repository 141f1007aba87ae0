"""Searches on arrays against qdrant-client's own, while points come, change and go."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import sparse_vector
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import CareError
from care_qdrant.qdrant import embedded_search
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
    sparse = sparse_vector(bm25.document_vector(text, average_length=40.0))
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
            sparse = models.Prefetch(query=sparse_vector(bm25.query_vector(text)), using="bm25", filter=where)
            dense = models.Prefetch(query=[0.1, 0.2, -0.3, 0.4], using="d", filter=where)
            plain = models.QueryRequest(query=sparse.query, using="bm25", filter=where, limit=7, with_payload=True)
            requests += [plain, plain.model_copy(update={"offset": 3, "score_threshold": 1.0})]
            tenant = models.SearchParams(idf=models.IdfCorpusParams(corpus=EVEN))
            requests.append(plain.model_copy(update={"params": tenant}))
            of_tenant = sparse.model_copy(update={"params": tenant})
            requests.append(fused_request(dense, of_tenant, fusion="linear", alpha=0.4, limit=7))
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
        [
            models.PointVectors(
                id=70, vector={"bm25": sparse_vector(bm25.document_vector(TEXTS[9], average_length=40.0))}
            )
        ],
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


SPARSE = models.Prefetch(query=sparse_vector(bm25.query_vector(QUERIES[1])), using="bm25", limit=30)
DENSE = models.Prefetch(query=[0.1, 0.2, -0.3, 0.4], using="d", limit=30)
BASES = {
    "dense": models.QueryRequest(query=DENSE.query, using="d", limit=7),
    "sparse": models.QueryRequest(query=SPARSE.query, using="bm25", limit=7),
    "points": models.QueryRequest(limit=7),
    **{fusion: fused_request(DENSE, SPARSE, fusion=fusion, alpha=0.4, limit=7) for fusion in FUSIONS},
}
CHANGED: dict[str, list[object]] = {
    "shard_key": ["a"],
    "prefetch": [[SPARSE.model_copy(update={"limit": 3})], SPARSE.model_copy(update={"limit": 3})],
    "query": [
        [0.4, 0.3, 0.2, 0.1],
        sparse_vector(bm25.query_vector(QUERIES[0])),
        70,
        models.RrfQuery(rrf=models.Rrf(k=3)),
    ],
    "using": ["d", "bm25"],
    "filter": [EVEN],
    "params": [models.SearchParams(idf=models.IdfCorpusParams(corpus=EVEN)), models.SearchParams(exact=True)],
    "score_threshold": [0.05, 0.4, 3.0],
    "limit": [0, 1, None],
    "offset": [0, 3, 1_000, -1],
    "with_vector": [True, ["d"]],
    "with_payload": [True, ["even"], models.PayloadSelectorExclude(exclude=["even"])],
    "lookup_from": [models.LookupLocation(collection="corpus", vector="d")],
}
"""Values of every field of a request, and of a list within it."""

Answer = list[tuple[object, float, object, object]] | str


def _answer(search: Callable[[], list[models.ScoredPoint]]) -> Answer:
    """Return what a search finds, or that it is refused."""
    try:
        return [(point.id, round(point.score, 6), point.payload, point.vector) for point in search()]
    except (CareError, ValueError, AssertionError):
        return "refused"


@pytest.fixture(scope="module")
def filled() -> Iterator[QdrantClient]:
    with closing(QdrantClient(":memory:")) as client:
        _create(client)
        yield client


def _same(client: QdrantClient, request: models.QueryRequest) -> Answer:
    """Return the answer of `Collection`, which has to be that of qdrant-client."""
    own = _answer(lambda: client.query_batch_points("corpus", [request])[0].points)
    found = _answer(lambda: Collection(client, "corpus").search("searching", [request])[0])
    assert found == own or request.shard_key is not None
    return found


@pytest.mark.filterwarnings("ignore:Local mode performs exact")
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("field", models.QueryRequest.model_fields)
def test_no_field_of_a_request_is_dropped(filled: QdrantClient, base: str, field: str) -> None:
    """The answer is that of qdrant-client with every field; shards, which it ignores, are refused."""
    for value in CHANGED[field]:
        found = _same(filled, BASES[base].model_copy(update={field: value}))
        assert found == "refused" or field != "shard_key"


@pytest.mark.filterwarnings("ignore:Local mode performs exact")
@pytest.mark.parametrize("base", FUSIONS)
@pytest.mark.parametrize("field", models.Prefetch.model_fields)
def test_no_field_of_a_list_to_fuse_is_dropped(filled: QdrantClient, base: str, field: str) -> None:
    request = BASES[base]
    assert isinstance(request.prefetch, list)
    for value in CHANGED[field]:
        for place, source in enumerate(request.prefetch):
            changed = list(request.prefetch)
            changed[place] = source.model_copy(update={field: value})
            _same(filled, request.model_copy(update={"prefetch": changed}))
            if isinstance(source.prefetch, list) and field != "prefetch":
                leaves = [source.prefetch[0].model_copy(update={field: value}), *source.prefetch[1:]]
                changed = [each.model_copy(update={"prefetch": leaves}) for each in request.prefetch]
                _same(filled, request.model_copy(update={"prefetch": changed}))


def test_a_threshold_and_an_offset_are_those_of_the_server(filled: QdrantClient) -> None:
    """A plain score has to exceed the threshold; an offset skips points that reach it."""
    collection, plain = Collection(filled, "corpus"), BASES["dense"].model_copy(update={"limit": 120})
    [hits] = collection.search("searching", [plain])
    above = plain.model_copy(update={"score_threshold": hits[3].score})
    skipped = above.model_copy(update={"offset": 2})
    found = collection.search("searching", [above, skipped])
    assert [[hit.id for hit in each] for each in found] == [[hit.id for hit in hits[:3]], [hits[2].id]]


def test_what_is_no_embedded_collection_is_left_alone() -> None:
    with closing(QdrantClient(":memory:")) as client:
        assert search_arrays(client, "missing", _requests()[0]) is None


class _Renamed:
    """An object of qdrant-client, one of whose names its users do not find any more."""

    def __init__(self, owner: object, hidden: str) -> None:
        self._owner, self._hidden = owner, hidden

    def __getattr__(self, name: str) -> object:
        if name == self._hidden:
            raise AttributeError(name)
        return getattr(self._owner, name)


@pytest.mark.filterwarnings("ignore:Local mode performs exact")
@pytest.mark.parametrize("name", embedded_search._READ)
def test_a_qdrant_client_with_other_names_searches_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that a new version does not have costs time and one warning, and changes no answer."""
    embedded_search._warn_once.cache_clear()
    with closing(QdrantClient(":memory:")) as client:
        _create(client)
        own = _own(client)
        collections = vars(client._client)["collections"]
        monkeypatch.setitem(collections, "corpus", _Renamed(collections["corpus"], name))
        points = Collection(client, "corpus").search("searching", _requests())
    assert [[(point.id, point.score, point.payload) for point in answer] for answer in points] == own
    assert [record.args and list(record.args)[-1] for record in caplog.records] == [name]


def test_a_qdrant_client_with_other_modules_or_collections_searches_itself(
    filled: QdrantClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    embedded_search._warn_once.cache_clear()
    request = BASES["sparse"]
    assert search_arrays(filled, "corpus", request)
    with monkeypatch.context() as patch:
        patch.setattr(embedded_search, "_IMPORT_ERROR", ImportError("no fusion"))
        assert search_arrays(filled, "corpus", request) is None
    with monkeypatch.context() as patch:
        patch.setattr(filled, "_client", _Renamed(filled._client, "collections"))
        assert search_arrays(filled, "corpus", request) is None
    assert "no fusion" in caplog.text
    assert "QdrantLocal.collections" in caplog.text
