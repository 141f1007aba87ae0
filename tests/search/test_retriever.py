"""Searches of a user: the right hits, from the right vectors, or a refusal that says why."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import FingerprintMismatch, InputError, SchemaMismatch, Unreachable, UnusableText
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search import retriever
from care_qdrant.search.fusion import Fusion
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolved import StoreConfig, resolve_vectors
from care_qdrant.search.retriever import MOST_HITS, Mode, Retriever
from care_qdrant.types import Chunk, Document
from tests.search.conftest import COLLECTION, fill
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts, point_alias

QUERIES = ["糖化血红蛋白 HbA1c 6.5% 说明什么", "二甲双胍恶心怎么办", "EGFR 靶向药"]


def test_a_search_is_hybrid_where_there_is_bm25(corpus: QdrantClient, model: HashModel) -> None:
    retriever = Retriever(corpus, COLLECTION, model)
    assert retriever.mode == "auto"
    found = retriever.search(QUERIES, top_k=7)
    expected = Retriever(corpus, COLLECTION, model, mode="hybrid").search(QUERIES, 7)
    for hits, others in zip(found, expected, strict=True):
        assert [replace(hit, score=0) for hit in hits] == [replace(hit, score=0) for hit in others]
        # The embedded database normalises its vectors at every search anew: the last bit of a score may change.
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in others], rel=1e-6)
    assert retriever.mode == "hybrid"


def test_dense_hits_are_the_nearest_documents(
    corpus: QdrantClient, model: HashModel, documents: list[Document]
) -> None:
    answers = Retriever(corpus, COLLECTION, model, mode="dense").search(QUERIES, top_k=7)
    similarity = model.encode_query(QUERIES) @ model.encode_document([document.text for document in documents]).T
    for row, hits in zip(similarity, answers, strict=True):
        nearest = np.argsort(-row)[:7]
        assert [hit.document_id for hit in hits] == [documents[n].id for n in nearest]
        assert [hit.score for hit in hits] == pytest.approx(row[nearest].tolist(), abs=1e-5)


def test_a_hit_says_all_that_the_document_said(
    corpus: QdrantClient, model: HashModel, documents: list[Document]
) -> None:
    [[hit]] = Retriever(corpus, COLLECTION, model).search([documents[5].text], top_k=1)
    assert (hit.document_id, hit.text, hit.chunk) == ("d5", documents[5].text, 0)
    assert hit.metadata == documents[5].metadata


def test_sparse_search_needs_no_model(corpus: QdrantClient, documents: list[Document]) -> None:
    [hits, none] = Retriever(corpus, COLLECTION, mode="sparse").search(["EGFR", "xyz"], top_k=100)
    assert {hit.document_id for hit in hits} == {d.id for d in documents if "EGFR" in d.text}
    assert none == []
    assert all(a.score >= b.score for a, b in pairwise(hits))


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_filter_holds_in_every_mode(corpus: QdrantClient, model: HashModel, mode: retriever.Mode) -> None:
    only = models.Filter(must=[models.FieldCondition(key="dept", match=models.MatchValue(value="外科"))])
    answers = Retriever(corpus, COLLECTION, model, mode=mode).search(QUERIES, top_k=20, filter=only)
    assert all(answers)
    assert {hit.metadata["dept"] for hits in answers for hit in hits} == {"外科"}


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_queries_keep_their_order_over_batches(
    corpus: QdrantClient, model: HashModel, mode: retriever.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(queries: list[str]) -> list[list[str]]:
        answers = Retriever(corpus, COLLECTION, model, mode=mode).search(queries, top_k=3)
        return [[hit.document_id for hit in hits] for hits in answers]

    one_by_one = [search([query])[0] for query in QUERIES]
    monkeypatch.setattr(retriever, "BATCH_QUERIES", 2)
    assert search([" ", *QUERIES, ""]) == [[], *one_by_one, []]


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_a_text_without_a_visible_character_has_no_hits_and_a_generator_is_read(
    corpus: QdrantClient, model: HashModel, mode: retriever.Mode
) -> None:
    search = Retriever(corpus, COLLECTION, model, mode=mode).search
    assert search(["", " \n", "\u200b\u00ad", "\ufeff", "\u2060\u3000"]) == [[]] * 5
    read = [search(queries) for queries in (QUERIES, (query for query in QUERIES))]  # type: ignore[list-item]
    assert [[[hit.point_id for hit in hits] for hits in answers] for answers in read] == 2 * [
        [[hit.point_id for hit in hits] for hits in read[0]]
    ]
    with pytest.raises(InputError, match="one text"):
        search(QUERIES[0])


def test_one_request_for_a_batch(server: StandIn, served: QdrantClient, model: HashModel) -> None:
    search = Retriever(served, COLLECTION, model, mode="hybrid").search
    search(QUERIES[:1])
    before = len(server.requests)
    search(QUERIES)
    assert len(server.requests) == before + 1


def test_only_the_query_encoder_is_read(corpus: QdrantClient) -> None:
    model = HashModel()
    Retriever(corpus, COLLECTION, model, mode="hybrid").search(QUERIES)
    assert model.document_encoder_reads == 0


def test_a_document_comes_once_by_its_best_chunk(client: QdrantClient, model: HashModel) -> None:
    long, short = Document("long", "长"), Document("short", "短")
    texts = [f"第{n}段 糖尿病" for n in range(30)]
    chunks = [Chunk(long, text, number, 30) for number, text in enumerate(texts)]
    fill(client, model, [*chunks, Chunk(short, "感冒")])
    hits = Retriever(client, COLLECTION, model).search([texts[17]], top_k=2)[0]
    assert [hit.document_id for hit in hits] == ["long", "short"]
    assert (hits[0].chunk, hits[0].text) == (17, texts[17])
    hits = Retriever(client, COLLECTION, model, unique_documents=False).search([texts[17]], top_k=2)[0]
    assert [hit.document_id for hit in hits] == ["long", "long"]


def test_points_of_other_tools_are_read(client: QdrantClient, model: HashModel) -> None:
    fill(client, model, [Chunk(Document("d0", "感冒"), "感冒")])
    vector = {model.name: model.encode_document(["发热"])[0].tolist()}
    langchain = {"page_content": "发热", "metadata": {"source": "a.pdf", "page": 3}}
    client.upsert(COLLECTION, [models.PointStruct(id=7, vector=vector, payload=langchain)])
    client.upsert(COLLECTION, [models.PointStruct(id=8, vector=vector, payload={"n": 1})])
    hits = {hit.point_id: hit for hit in Retriever(client, COLLECTION, model).search(["发热"], top_k=3)[0]}
    assert hits["7"].text == "发热"
    assert hits["7"].document_id == "a.pdf"
    assert hits["7"].metadata == {"source": "a.pdf", "page": 3}
    assert (hits["8"].text, hits["8"].document_id, hits["8"].metadata) == ("", "8", {"n": 1})


def test_another_model_of_the_same_dimension_is_refused(corpus: QdrantClient, model: HashModel) -> None:
    other = HashModel(name="other", salt="other")
    with pytest.raises(FingerprintMismatch, match="was made by hash-model"):
        Retriever(corpus, COLLECTION, other, vector_name=model.name).search(QUERIES)
    with pytest.raises(InputError, match=r"no vector 'other' \(it has: hash-model\)"):
        Retriever(corpus, COLLECTION, other).search(QUERIES)


def test_the_vector_of_the_model_is_found_under_any_name(client: QdrantClient, model: HashModel) -> None:
    """Beside an unnamed vector of equal dimension: the stock LlamaIndex store would search that one."""
    params = models.VectorParams(size=model.dim, distance=models.Distance.COSINE)
    client.create_collection("c", vectors_config={"": params, "mine": params})
    Collection(client, "c").write_contract("mine", model.contract())
    wrong, right = model.encode_document(["错"])[0].tolist(), model.encode_document(["对"])[0].tolist()
    for n, (old, new) in enumerate([(right, wrong), (wrong, right)]):
        client.upsert("c", [models.PointStruct(id=n, vector={"": old, "mine": new}, payload={"text": str(n)})])
    [[hit]] = Retriever(client, "c", model).search(["对"], top_k=1)
    assert hit.text == "1"


def test_another_analyser_is_refused(client: QdrantClient, model: HashModel) -> None:
    fill(client, model, [Chunk(Document("d0", "感冒"), "感冒")])
    contract = SparseContract("zh-word-0", 1.2, 0.75, 10.0)
    Collection(client, COLLECTION).write_contract(bm25.VECTOR_NAME, contract)
    for mode in ("sparse", "hybrid"):
        with pytest.raises(FingerprintMismatch, match="by zh-word-0"):
            Retriever(client, COLLECTION, model, mode=mode).search(QUERIES)
    assert Retriever(client, COLLECTION, model).search(QUERIES)


def test_sparse_vector_without_idf_is_refused(client: QdrantClient) -> None:
    client.create_collection("c", vectors_config={}, sparse_vectors_config={"bm25": models.SparseVectorParams()})
    with pytest.raises(SchemaMismatch, match="IDF"):
        Retriever(client, "c", mode="sparse").search(QUERIES)


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_as_many_hits_as_may_be_asked_for_are_read(corpus: QdrantClient, model: HashModel, mode: Mode) -> None:
    retriever = Retriever(corpus, COLLECTION, model, mode=mode)
    for few, most in (({"top_k": 1_000}, {"top_k": MOST_HITS}), ({"group_size": 30}, {"group_size": 2**16})):
        groups = {"top_k": 2**16, "group_by": "dept"} if "group_size" in few else {}
        expected, found = (retriever.search(QUERIES[:1], **{**groups, **asked})[0] for asked in (few, most))  # type: ignore[arg-type]
        assert sorted(hit.point_id for hit in found) == sorted(hit.point_id for hit in expected)
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=1e-6)


def test_refusals_before_anything_is_asked(client: QdrantClient, model: HashModel) -> None:
    with pytest.raises(InputError, match="needs a model"):
        Retriever(client, COLLECTION, mode="hybrid")
    with pytest.raises(InputError, match="alpha is 2"):
        Retriever(client, COLLECTION, model, alpha=2)
    for wrong in ({"mode": "vector"}, {"fusion": "rff"}):
        [(name, value)] = wrong.items()
        with pytest.raises(InputError, match=f"{name} is '{value}'; expected one of .*"):
            Retriever(client, COLLECTION, model, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"filter is a list; expected a qdrant_client.models.Filter"):
        Retriever(client, COLLECTION, model).search(QUERIES, 3, ["year>=2020"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="top_k is 0"):
        Retriever(client, COLLECTION, model).search(QUERIES, top_k=0)
    for top_k, group_size in ((MOST_HITS + 1, 1), (10**5000, 1), (1, 10**5000), (2**17, 2**16)):
        with pytest.raises(InputError, match="top_k times group_size has to be at most 4,294,967,296"):
            Retriever(client, COLLECTION, model).search(QUERIES, top_k, group_by="dept", group_size=group_size)
    with pytest.raises(InputError, match=r"no collection 'corpus' \(existing collections: none\)"):
        Retriever(client, COLLECTION, model).search(QUERIES)


def test_an_alias_that_is_switched_to_another_model_is_refused_from_then_on(
    client: QdrantClient, model: HashModel
) -> None:
    chunks = [Chunk(Document("d0", "感冒"), "感冒")]
    fill(client, model, chunks)
    fill(client, HashModel(salt="retrained"), chunks, "corpus_v2")
    point_alias(client, "live", COLLECTION)
    retriever = Retriever(client, "live", model, check_seconds=0)
    assert retriever.search(["感冒"])[0][0].document_id == "d0"
    point_alias(client, "live", "corpus_v2")
    with pytest.raises(FingerprintMismatch, match="'live'"):
        retriever.search(["感冒"])


def test_a_short_fault_is_outlived_and_a_long_one_is_told(
    server: StandIn, served: QdrantClient, model: HashModel
) -> None:
    search = Retriever(served, COLLECTION, model).search
    expected = search(QUERIES)
    server.faults.add("500", times=1, method="POST", path="/query/batch$")
    assert search(QUERIES) == expected
    server.faults.add("500", times=3, method="POST", path="/query/batch$")
    with pytest.raises(Unreachable, match="searching for 3 queries"):
        search(QUERIES)


@pytest.mark.parametrize("mode", ["sparse", "dense", "hybrid"])
def test_one_text_is_not_taken_for_a_list_of_characters(
    corpus: QdrantClient, model: HashModel, mode: retriever.Mode
) -> None:
    search = Retriever(corpus, "corpus", model, mode=mode).search
    with pytest.raises(InputError, match=r"write \[text\]"):
        search("发烧怎么办")
    with pytest.raises(UnusableText, match=r"^query 1 is None"):
        search(["发烧怎么办", None])  # type: ignore[list-item]


def test_a_query_with_half_a_character_is_named() -> None:
    """The error names its place in the call, also behind the first batch and behind blank queries."""
    client, model = QdrantClient(":memory:"), CareModel.load()
    ingest([Document("a", "多喝水")], model, client, "corpus")
    queries = ["发烧", " "] * retriever.BATCH_QUERIES + ["\udcff"]
    with pytest.raises(UnusableText, match=f"^query {len(queries) - 1} "):
        Retriever(client, "corpus", model).search(queries)
    client.close()


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_hits_below_the_least_score_are_left_out(corpus: QdrantClient, model: HashModel, mode: retriever.Mode) -> None:
    searching = Retriever(corpus, COLLECTION, None if mode == "sparse" else model, mode=mode)
    query = medical_texts(60)[4]
    [everything] = searching.search([query], top_k=60)
    for place in (0, 3, len(everything) - 1):
        least = everything[place].score - 1e-5  # products are not always added up in the same order
        [found] = searching.search([query], top_k=60, score_threshold=least)
        assert {hit.point_id for hit in found} == {hit.point_id for hit in everything if hit.score >= least}
    assert searching.search([query], score_threshold=everything[0].score + 1) == [[]]
    for no_number in (math.nan, math.inf):
        with pytest.raises(InputError, match="give a finite number"):
            searching.search([query], score_threshold=no_number)


@pytest.mark.parametrize("fusion", ["rrf", "dbsf"])
def test_a_least_score_of_ranks_is_refused(corpus: QdrantClient, model: HashModel, fusion: Fusion) -> None:
    searching = Retriever(corpus, COLLECTION, model, mode="hybrid", fusion=fusion)
    with pytest.raises(InputError, match=f"a score of {fusion} tells the rank"):
        searching.search(["糖尿病"], score_threshold=0.4)


def test_of_distances_the_least_score_is_the_largest_one(client: QdrantClient, model: HashModel) -> None:
    vectors = {"v": models.VectorParams(size=model.dim, distance=models.Distance.EUCLID)}
    client.create_collection(COLLECTION, vectors_config=vectors)
    encoded = model.encode_document(medical_texts(8)).tolist()
    points = [models.PointStruct(id=number, vector={"v": vector}) for number, vector in enumerate(encoded)]
    client.upsert(COLLECTION, points)
    collection = Collection(client, COLLECTION)
    resolved = resolve_vectors(collection, collection.schema, StoreConfig(vector_name="v"), checked_at=0.0)
    query = Query(encoded[0], None, 8)
    [[everything]] = find(resolved, [query])
    [[found]] = find(resolved, [replace(query, score_threshold=everything[2].score + 1e-5)])
    assert [hit.point_id for hit in found] == [hit.point_id for hit in everything[:3]]
