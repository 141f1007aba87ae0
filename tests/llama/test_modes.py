"""Query modes of `CareVectorStore`: hybrid, sparse, MMR, and those that are refused."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from llama_index.vector_stores.qdrant.utils import relative_score_fusion
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.metadata import SHARE
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.encoders.terms.sparse import TwoSidedSparse
from care_qdrant.encoders.terms.weights import TermWeights
from care_qdrant.errors import FingerprintMismatch, InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.connection import is_embedded, open_client
from care_qdrant.types import Document
from tests.llama.collections import DOCUMENTS, NAME, fill, node_id, query_of, vector
from tests.tiny import HashModel, medical_texts


@pytest.fixture
def store(client: QdrantClient, embedding: CareEmbedding) -> CareVectorStore:
    fill(client, sparse=True)
    return CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)


@pytest.mark.parametrize("alpha", [-0.1, 1.01, float("nan")])
def test_an_alpha_that_is_no_share_is_refused(store: CareVectorStore, alpha: float) -> None:
    with pytest.raises(InputError, match="it is the share of the dense list, from 0 to 1"):
        store.query(query_of("耳鸣 噪声", alpha=alpha))


async def test_alpha_says_who_counts_and_zero_is_zero(store: CareVectorStore) -> None:
    for alpha, best in ((1.0, "d0"), (0.0, "d2")):
        asked = query_of("耳鸣 噪声", alpha=alpha)
        for result in (store.query(asked), await store.aquery(asked)):
            scores = result.similarities or []
            assert (result.nodes or [])[0].ref_doc_id == best
            assert all(0 <= score <= 1 for score in scores)
            assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("heavy", "best"), [("耳鸣", "d2"), ("阑尾炎", "d3")])
def test_the_weights_of_the_pair_count_beside_vectors_only(
    client: QdrantClient, embedding: CareEmbedding, monkeypatch: pytest.MonkeyPatch, heavy: str, best: str
) -> None:
    fill(client, sparse=True)
    terms = np.sort(np.array([bm25.term_id(term) for term in DEFAULT.terms(heavy)], np.uint32))
    weights = TermWeights(terms, np.full(len(terms), 9.0, np.float32))
    monkeypatch.setattr(HashModel, "query_terms", lambda _, text, analyser: weights.query_vector(text, analyser))
    store = CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)
    found = store.query(query_of("耳鸣 阑尾炎", alpha=0.0))
    assert (found.nodes or [])[0].ref_doc_id == best
    plain = CareVectorStore(NAME, client, enable_hybrid=True, vector_name="care")
    asked = query_of("耳鸣 阑尾炎", VectorStoreQueryMode.SPARSE)
    assert store.query(asked).similarities == plain.query(asked).similarities


def test_sparse_alone(store: CareVectorStore) -> None:
    found = store.query(query_of("阑尾炎", VectorStoreQueryMode.SPARSE))
    assert [node.ref_doc_id for node in found.nodes or ()] == ["d3"]
    assert store.query(query_of("？！", VectorStoreQueryMode.SPARSE)).nodes == []


def test_a_sparse_query_says_how_many_it_wants(store: CareVectorStore) -> None:
    asked = query_of("可", VectorStoreQueryMode.SPARSE)
    asked = replace(asked, query_str="高血压 二甲双胍 耳鸣 阑尾炎", similarity_top_k=1)
    assert len(store.query(asked).nodes or ()) == 1
    assert len(store.query(replace(asked, sparse_top_k=3)).nodes or ()) == 3


@pytest.mark.parametrize("text", ["", " ", "\n\u3000"])
@pytest.mark.parametrize(
    "mode", [VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.SPARSE]
)
def test_a_text_without_a_character_finds_nothing(
    store: CareVectorStore, text: str, mode: VectorStoreQueryMode
) -> None:
    assert store.query(VectorStoreQuery(query_str=text, similarity_top_k=3, mode=mode)).nodes == []


def test_a_query_without_terms_is_dense(store: CareVectorStore) -> None:
    assert (store.query(query_of("？")).nodes or [])[0].ref_doc_id == "d0"


def test_another_sparse_encoder_is_fused_by_rank_of_score(client: QdrantClient) -> None:
    fill(client, sparse=True)

    def words(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        from care_qdrant.encoders.terms import bm25

        vectors = [bm25.query_vector(text) for text in texts]
        return [one.indices for one in vectors], [[50 * value for value in one.values] for one in vectors]

    store = CareVectorStore(
        NAME, client, vector_name="care", enable_hybrid=True, sparse_query_fn=words, sparse_doc_fn=words
    )
    for alpha, best in ((1.0, "d0"), (0.0, "d2")):
        result = store.query(query_of("耳鸣 噪声", alpha=alpha))
        assert (result.nodes or [])[0].ref_doc_id == best
        assert max(result.similarities or [2]) <= 1


def test_functions_that_are_exchanged_later_are_used(store: CareVectorStore) -> None:
    asked: list[str] = []

    def nothing(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        asked.extend(texts)
        return [[] for _ in texts], [[] for _ in texts]

    def second(_: Any, sparse: Any, **__: Any) -> Any:
        return sparse

    store.set_query_functions(hybrid_fusion_fn=second)
    assert [node.ref_doc_id for node in store.query(query_of("阑尾炎", alpha=1.0)).nodes or ()] == ["d3"]
    store.set_query_functions(sparse_doc_fn=nothing, sparse_query_fn=nothing)
    assert (store.query(query_of("阑尾炎")).nodes or [])[0].ref_doc_id == "d0"
    assert asked == ["阑尾炎"]
    with pytest.raises(InputError, match="two sides"):
        store.set_query_functions(sparse_doc_fn=nothing)
    with pytest.raises(InputError, match="other terms"):
        CareVectorStore(NAME, store.client, enable_hybrid=True, sparse_doc_fn=nothing)


def test_queries_are_hybrid_where_the_collection_has_bm25(client: QdrantClient, embedding: CareEmbedding) -> None:
    fill(client, sparse=True)
    asked = query_of("阑尾炎", VectorStoreQueryMode.DEFAULT, alpha=0.0)
    store = CareVectorStore(NAME, client, embedding=embedding, check_vectors=False)
    assert (store.query(asked).nodes or [])[0].ref_doc_id == "d3"
    dense = CareVectorStore(NAME, client, embedding=embedding, check_vectors=False, enable_hybrid=False)
    assert (dense.query(asked).nodes or [])[0].ref_doc_id == "d0"
    node = TextNode(id_=node_id(DOCUMENTS[0]), text="肛裂", embedding=vector("肛裂"))
    store.add([node])
    assert (store.query(query_of("肛裂", VectorStoreQueryMode.SPARSE)).nodes or [])[0].get_content() == "肛裂"


def test_what_the_dense_list_counts_is_measured_where_no_card_says_it(
    client: QdrantClient, hash_model: HashModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [Document(f"d{n}", text, title=f"第 {n} 问怎么办") for n, text in enumerate(medical_texts(300))]
    ingest(documents, hash_model, client, NAME, settings=IngestSettings(sparse=True))  # type: ignore[arg-type]
    monkeypatch.setattr(hash_model, "alpha", None)
    store = CareVectorStore(NAME, client, embedding=CareEmbedding(model="m"), check_vectors=False)

    def scores(alpha: float | None) -> list[float]:
        return store.query(replace(query_of("头痛怎么办"), alpha=alpha)).similarities or []

    by_default = scores(None)
    [kept] = [
        value for key, value in client.get_collection(NAME).config.metadata.items() if key.startswith(SHARE.of(""))
    ]
    assert by_default == pytest.approx(scores(float(kept["alpha"])))
    assert by_default != pytest.approx(scores(0.5))


def test_a_hybrid_query_can_be_switched_off(client: QdrantClient) -> None:
    fill(client, sparse=True)
    with pytest.raises(ValueError, match="enable_hybrid=True"):
        CareVectorStore(NAME, client, enable_hybrid=False).query(query_of("x"))


def test_a_hybrid_query_without_bm25_names_the_way_to_it(client: QdrantClient) -> None:
    fill(client)
    with pytest.raises(ValueError, match=f"care attach {NAME} --bm25") as refusal:
        CareVectorStore(NAME, client).query(query_of("x"))
    assert ("--url" in str(refusal.value)) is not is_embedded(client)
    assert "--path" not in str(refusal.value), "this embedded database is in memory"


def test_the_way_to_bm25_names_the_folder_of_the_database(tmp_path: Path) -> None:
    with open_client(path=tmp_path / "my data") as client:
        fill(client)
        with pytest.raises(ValueError, match=f"care attach {NAME} --bm25 --path '{tmp_path}/my data'"):
            CareVectorStore(NAME, client).query(query_of("x"))


def test_another_analyser_is_refused(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, sparse=True)
    monkeypatch.setattr("care_qdrant.qdrant.checks.find_analyser", lambda _: None)  # as in a version without it
    with pytest.raises(FingerprintMismatch, match="cut into terms"):
        CareVectorStore(NAME, client, enable_hybrid=True)


def test_mmr_is_that_of_llama_index(client: QdrantClient) -> None:
    vectors = [[1.0, 0.0], [1.0, 0.01], [0.8, 0.6], [0.0, 1.0]]
    nodes = [
        TextNode(id_=str(uuid.UUID(int=number)), text=f"t{number}", embedding=one) for number, one in enumerate(vectors)
    ]
    store, simple = CareVectorStore(NAME, client), SimpleVectorStore()
    store.add(nodes)
    simple.add(nodes)  # type: ignore[arg-type]  # lists are invariant
    query = VectorStoreQuery(query_embedding=[1.0, 0.1], similarity_top_k=3, mode=VectorStoreQueryMode.MMR)
    answers = []
    for threshold in (0.1, 0.5, 1.0):
        found, expected = (one.query(query, mmr_threshold=threshold) for one in (store, simple))
        assert found.ids == expected.ids
        assert found.similarities == pytest.approx(expected.similarities, abs=1e-6)
        answers.append(found.ids)
    assert answers[0] != answers[-1]
    assert store.query(replace(query, mmr_threshold=1.0)).ids == answers[-1]
    for threshold in (float("nan"), -0.1, 2.0):
        with pytest.raises(InputError, match=r"mmr_threshold is .*; expected a number from 0 to 1"):
            store.query(replace(query, mmr_threshold=threshold))


@pytest.mark.parametrize("mode", [VectorStoreQueryMode.SVM, VectorStoreQueryMode.TEXT_SEARCH])
def test_a_mode_that_is_not_answered_is_refused(client: QdrantClient, mode: VectorStoreQueryMode) -> None:
    fill(client)
    with pytest.raises(ValueError, match=f"default, sparse, hybrid, mmr, none of mode {mode.value}"):
        CareVectorStore(NAME, client).query(VectorStoreQuery(query_embedding=vector("x"), mode=mode))


@pytest.mark.parametrize("distance", [models.Distance.EUCLID, models.Distance.MANHATTAN])
def test_the_least_distance_is_the_best(client: QdrantClient, distance: models.Distance) -> None:
    """Scores by a distance grow as points get worse: taken as similarities, they turn an order upside down."""
    by_term = TwoSidedSparse(*[lambda texts: ([[1]] * len(texts), [[1.0]] * len(texts))] * 2)
    names = {"care": models.VectorParams(size=32, distance=distance)}
    client.create_collection("far", names, sparse_vectors_config={"terms": models.SparseVectorParams()})
    plain = CareVectorStore("far", client, sparse_encoder=by_term, sparse_vector_name="terms", vector_name="care")
    plain.add([TextNode(id_=node_id(one), text=one.text, embedding=vector(one.text)) for one in DOCUMENTS])
    for document in DOCUMENTS:
        asked = replace(query_of("x", alpha=0.9), query_embedding=vector(document.text))
        fused = plain.query(asked)
        scores = plain.score(vector(document.text), [node_id(one) for one in DOCUMENTS])
        assert (fused.ids or [])[0] == max(scores, key=lambda point: scores[point]) == node_id(document)
        assert fused.similarities == sorted(set(fused.similarities or ()), reverse=True)
        dense = replace(asked, mode=VectorStoreQueryMode.DEFAULT, similarity_top_k=len(DOCUMENTS))
        found = plain.query(dense)
        assert dict(zip(found.ids or (), found.similarities or (), strict=True)) == pytest.approx(scores)
        assert found.similarities == sorted(scores.values(), reverse=True)
        least = (found.similarities or [])[2]
        for options in ({}, {"group_by": "doc_id", "group_size": 9}):
            passing = plain.query(dense, score_threshold=least, **options)
            assert passing.similarities == [score for score in found.similarities or () if score >= least]
        plain.set_query_functions(hybrid_fusion_fn=relative_score_fusion)
        assert (plain.query(asked).ids or [])[0] == node_id(document)
        plain.hybrid_fusion_fn = None


@pytest.mark.parametrize("mode", [VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR])
def test_a_text_without_a_vector_is_not_answered_by_any_points(
    client: QdrantClient, embedding: CareEmbedding, mode: VectorStoreQueryMode
) -> None:
    fill(client, sparse=True)
    store = CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=False)
    with pytest.raises(InputError, match=f"a query of mode {mode.value} has a text and no vector"):
        store.query(VectorStoreQuery(query_str="高血压", mode=mode))
    assert len(store.query(VectorStoreQuery(similarity_top_k=9)).nodes or []) == len(DOCUMENTS)
