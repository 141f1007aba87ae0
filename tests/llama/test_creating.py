"""The collection that the first `add` of a `CareVectorStore` creates."""

import uuid

import pytest
from llama_index.core import Document as LlamaDocument
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant.errors import SchemaMismatch
from care_qdrant.qdrant.collection import Collection
from tests.llama.collections import DOCUMENTS, NAME, find, node_id, query_of, vector
from tests.tiny import HashModel


def test_a_new_collection_has_a_named_vector_and_its_contract(client: QdrantClient, embedding: CareEmbedding) -> None:
    store = CareVectorStore(NAME, client, embedding=embedding)
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(
        [LlamaDocument(text=document.text, doc_id=document.id) for document in DOCUMENTS],
        storage_context=context,
        embed_model=embedding,
    )
    assert list(client.get_collection(NAME).config.params.vectors) == ["hash-model"]  # type: ignore[arg-type]
    assert Collection(client, NAME).schema.contracts == {"hash-model": HashModel().contract()}
    (hit,) = index.as_retriever(similarity_top_k=1).retrieve(DOCUMENTS[1].text)
    assert hit.node.ref_doc_id == "d1"
    again = CareVectorStore(NAME, client, embedding=embedding)
    assert find(again, DOCUMENTS[1].text) == [DOCUMENTS[1].text]


def test_vectors_of_another_dimension_create_nothing(client: QdrantClient, embedding: CareEmbedding) -> None:
    node = TextNode(id_=str(uuid.uuid4()), text="x", embedding=[1.0, 0.0])
    with pytest.raises(SchemaMismatch, match="2 dimensions"):
        CareVectorStore(NAME, client, embedding=embedding).add([node])
    assert not client.collection_exists(NAME)


def test_it_can_create_and_fill_a_collection(client: QdrantClient, embedding: CareEmbedding) -> None:
    store = CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)
    nodes = [TextNode(id_=node_id(document), text=document.text) for document in DOCUMENTS]
    for node in nodes:
        node.embedding = vector(node.text)
    store.add(nodes)
    assert set(Collection(client, NAME).schema.contracts) == {"hash-model", "bm25"}
    reopened = CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)
    found = reopened.query(query_of("阑尾炎", alpha=0.0))
    assert (found.nodes or [])[0].get_content() == DOCUMENTS[3].text
