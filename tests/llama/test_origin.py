"""Vectors of another model are refused, whoever passes them to the store."""

import asyncio
import uuid
from typing import Any

import numpy as np
import pytest
from llama_index.core import Document as LlamaDocument
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant.errors import ContractError, InputError, SchemaMismatch
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.llama.collections import DOCUMENTS, NAME, fill, vector
from tests.tiny import HashModel


class OtherEmbedding(BaseEmbedding):
    """Another model of the same dimension."""

    salt: str = "another"
    dim: int = 32

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return [*map(float, vector(text, self.salt)), *[0.0] * (self.dim - 32)]


@pytest.fixture
def embedding(hash_model: HashModel) -> CareEmbedding:
    # A name of its own: models of other tests that are not collected yet stay open under theirs.
    return CareEmbedding(model=f"m-{uuid.uuid4()}")


def _node(text: str, made_of: str | None = None, salt: str = "", **metadata: Any) -> TextNode:
    return TextNode(id_=str(uuid.uuid4()), text=text, metadata=metadata, embedding=vector(made_of or text, salt))


@pytest.mark.parametrize("from_settings", [False, True])
def test_an_index_with_another_model_is_refused(
    client: QdrantClient, embedding: CareEmbedding, from_settings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    monkeypatch.setattr(Settings, "_embed_model", OtherEmbedding())
    chosen: dict[str, Any] = {} if from_settings else {"embed_model": OtherEmbedding()}
    index = VectorStoreIndex.from_vector_store(store, **chosen)
    retriever = index.as_retriever()
    with pytest.raises(ContractError, match=r"'高血压'.*'hash-model'.*cosine.*embed_model=embedding"):
        retriever.retrieve("高血压")
    with pytest.raises(ContractError, match="'corpus'"):
        asyncio.run(retriever.aretrieve("高血压"))
    with pytest.raises(ContractError, match="Nothing was written"):
        index.insert(LlamaDocument(text="新的"))
    assert client.count(NAME).count == len(DOCUMENTS)


def test_the_right_model_passes_and_is_not_asked_twice(
    client: QdrantClient, embedding: CareEmbedding, hash_model: HashModel
) -> None:
    store = CareVectorStore(NAME, client, embedding=embedding)
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    index.insert_nodes([TextNode(text=document.text) for document in DOCUMENTS])
    hash_model.query_encoder.encoded.clear()
    assert index.as_retriever(similarity_top_k=1).retrieve("只问一次的问题")
    assert hash_model.query_encoder.encoded == ["只问一次的问题"]


def test_what_int8_changes_passes_and_more_does_not(client: QdrantClient, embedding: CareEmbedding) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    right, noise = np.array(vector("x")), np.array(vector("noise"))
    across = noise - (noise @ right) * right
    for cosine, passes in ((0.995, True), (0.96, False)):
        mixed = cosine * right + np.sqrt(1 - cosine**2) * across / np.linalg.norm(across)
        query = VectorStoreQuery(query_embedding=mixed.tolist(), query_str="x", similarity_top_k=1)
        if passes:
            assert store.query(query).ids
        else:
            with pytest.raises(ContractError):
                store.query(query)
    zero = VectorStoreQuery(query_embedding=[0.0] * 32, query_str="x")
    with pytest.raises(ContractError):
        store.query(zero)


def test_another_dimension_is_refused_before_anything_is_sent(client: QdrantClient, embedding: CareEmbedding) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    index = VectorStoreIndex.from_vector_store(store, embed_model=OtherEmbedding(dim=48))
    with pytest.raises(SchemaMismatch, match=r"query vector.*48 dimensions.*'hash-model'.*makes 32"):
        index.as_retriever().retrieve("x")
    with pytest.raises(SchemaMismatch, match="48 dimensions"):
        index.insert(LlamaDocument(text="新的"))
    with pytest.raises(SchemaMismatch, match="2 dimensions"):
        store.query(VectorStoreQuery(query_embedding=[1.0, 0.0]))


@pytest.mark.parametrize("use_async", [False, True])
def test_nodes_of_another_model_are_refused(client: QdrantClient, embedding: CareEmbedding, use_async: bool) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    foreign = [_node("一", salt="other"), _node("二", salt="other")]
    with pytest.raises(ContractError, match=f"node {foreign[0].node_id}|node {foreign[1].node_id}"):
        asyncio.run(store.async_add(foreign)) if use_async else store.add(foreign)
    assert client.count(NAME).count == len(DOCUMENTS)
    unsure = [_node("一"), _node("三", dept="内科"), _node("二", "标题 二", title="标题")]
    assert len(asyncio.run(store.async_add(unsure)) if use_async else store.add(unsure)) == 3


def test_without_documents_the_dimension_is_checked(client: QdrantClient, hash_model: HashModel) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=CareEmbedding(model="m", documents=False))
    store.add([_node("一", salt="other")])
    with pytest.raises(SchemaMismatch):
        store.add([TextNode(id_=str(uuid.uuid4()), text="二", embedding=[1.0] * 16)])


def test_a_vector_of_another_text_passes_where_the_check_is_off(client: QdrantClient, embedding: CareEmbedding) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding, check_vectors=False)
    query = VectorStoreQuery(query_embedding=vector(DOCUMENTS[0].text), query_str="一个假设的答案", similarity_top_k=1)
    assert [node.get_content() for node in store.query(query).nodes or ()] == [DOCUMENTS[0].text]


def test_an_embedding_of_another_class_is_explained(client: QdrantClient) -> None:
    fill(client)
    with pytest.raises(InputError, match="is a OtherEmbedding, which does not say what made its vectors"):
        CareVectorStore(NAME, client, embedding=OtherEmbedding())  # type: ignore[arg-type]


@pytest.mark.parametrize("with_metadata", [False, True])
def test_verify_and_attach_leave_alone_what_the_store_wrote(
    client: QdrantClient, embedding: CareEmbedding, hash_model: HashModel, with_metadata: bool
) -> None:
    store = CareVectorStore(NAME, client, embedding=embedding)
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    metadata = {"dept": "内科"} if with_metadata else {}
    index.insert_nodes([TextNode(text=f"第{n}段", metadata=dict(metadata)) for n in range(15)])
    report = verify_collection(client, NAME, hash_model)
    assert (report.points, report.covered, report.without_vector, report.outdated) == (15, 15, 0, 0)
    assert report.problems == []
    assert report.sampled == 15
    assert report.lowest_cosine == pytest.approx(1, abs=1e-5)
    if not with_metadata:
        assert attach_vector(client, NAME, hash_model).encoded == 0


def test_ingestion_and_attach_do_not_undo_each_other(
    client: QdrantClient, embedding: CareEmbedding, hash_model: HashModel
) -> None:
    """Points of both writers, most of them of LlamaIndex: the payloads of ingestion keep their title."""
    titled = [type(document)(document.id, document.text, "标题") for document in DOCUMENTS]
    ingest(titled, hash_model, client, NAME)
    store = CareVectorStore(NAME, client, embedding=embedding)
    VectorStoreIndex.from_vector_store(store, embed_model=embedding).insert_nodes(
        [TextNode(text=f"第{n}段") for n in range(15)]
    )
    assert verify_collection(client, NAME, hash_model).problems == []
    assert attach_vector(client, NAME, hash_model).encoded == 0
    assert ingest(titled, hash_model, client, NAME).unchanged == len(titled)


def test_a_foreign_vector_without_a_hash_is_found(client: QdrantClient, hash_model: HashModel) -> None:
    embedding = CareEmbedding(model="m")
    checked = CareVectorStore(NAME, client, embedding=embedding)
    checked.add([_node(f"第{n}段") for n in range(15)])
    CareVectorStore(NAME, client).add([_node("别的", salt="other")])
    report = verify_collection(client, NAME, hash_model)
    assert report.lowest_cosine is not None and report.lowest_cosine < 0.9
    assert any("another model" in problem or "altered" in problem for problem in report.problems)
