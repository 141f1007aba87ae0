"""Abilities that only a real server has: it takes points over gRPC, and makes the terms of BM25 itself."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant import Document, Retriever, ingest
from care_qdrant.encoders.terms.sparse import native_bm25
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.databases import REAL, open_database
from tests.reliability.processes import BINARY, QdrantServer
from tests.tiny import HashModel, medical_texts

DOCUMENTS = [Document(f"d{number}", text) for number, text in enumerate(medical_texts(50))]

CHINESE = ["糖尿病人能吃西瓜吗", "高血压患者可以喝酒", "西瓜含糖吗"]
NAME = "corpus"
pytestmark = pytest.mark.server


@pytest.fixture(params=REAL)
def server(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    with open_database(request) as client:
        yield client


def test_the_servers_own_bm25_is_searched(server: QdrantClient) -> None:
    """The server makes the terms of documents and queries."""
    model = HashModel(max_tokens=512)
    ingest(DOCUMENTS, model, server, NAME)
    sparse = models.SparseVectorConfig(modifier=models.Modifier.IDF)
    server.create_vector_name(NAME, "native", models.SparseVectorNameConfig(sparse=sparse))
    records, _ = server.scroll(NAME, limit=100)
    texts = {record.id: (record.payload or {})["text"] for record in records}
    points = [models.PointVectors(id=key, vector={"native": native_bm25(text)}) for key, text in texts.items()]
    server.update_vectors(NAME, points, wait=True)
    for mode in ("sparse", "hybrid"):
        retriever = Retriever(server, NAME, model, mode=mode, sparse_vector_name="native", sparse_encoder=native_bm25)
        [[hit]] = retriever.search([DOCUMENTS[7].text], top_k=1)
        assert hit.document_id == "d7"


def test_a_llama_index_store_writes_and_searches_the_servers_own_bm25(server: QdrantClient) -> None:
    """The vectors of the nodes are all equal, so that only the terms, which the server made, tell them apart."""
    native = partial(native_bm25, tokenizer=models.TokenizerType.MULTILINGUAL)
    for number in range(2):
        # The second store finds the collection that the first one created.
        store = CareVectorStore(NAME, server, vector_name="dense", sparse_encoder=native, sparse_vector_name="native")
        store.add([TextNode(text=text, embedding=[1.0, 0.0]) for text in CHINESE[number::2]])
    sparse = server.get_collection(NAME).config.params.sparse_vectors
    assert sparse is not None and sparse["native"].modifier == models.Modifier.IDF
    for mode in (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID):
        asked = VectorStoreQuery(query_embedding=[1.0, 0.0], query_str="高血压喝酒", mode=mode, similarity_top_k=1)
        [node] = store.query(asked).nodes or ()
        assert node.get_content() == CHINESE[1]
    asked = VectorStoreQuery(query_str="西瓜", mode=VectorStoreQueryMode.SPARSE, similarity_top_k=3)
    assert {node.get_content() for node in store.query(asked).nodes or ()} == {CHINESE[0], CHINESE[2]}


@pytest.mark.skipif(BINARY is None, reason="needs the program of a server")
def test_a_vector_that_is_made_anew_is_the_new_one_after_a_restart(tmp_path: Path) -> None:
    """Qdrant's issues 9317 and 9641: what was deleted of a vector came back when segments were loaded again."""
    texts = medical_texts(300)
    first, second = HashModel(salt="first"), HashModel(salt="second")
    with QdrantServer(BINARY or "", tmp_path) as server:
        with open_client(url=server.url) as client:
            client.create_collection("c", models.VectorParams(size=2, distance=models.Distance.DOT))
            points = [
                models.PointStruct(id=number, vector=[1.0, number], payload={"text": text})
                for number, text in enumerate(texts)
            ]
            client.upsert("c", points, wait=True)
            attach_vector(client, "c", first, vector_name="care")
            detach_vector(client, "c", "care")
        server.kill()
        server.start()
        with open_client(url=server.url) as client:
            attach_vector(client, "c", second, vector_name="care")
            client.delete("c", [299], wait=True)
        server.kill()
        server.start()
        with open_client(url=server.url) as client:
            records = Collection(client, "c").retrieve(range(300), vectors=True)
            assert set(records) == set(range(299))
            expected = second.document_encoder.encode(texts[:299])
            stored = [records[number].vector["care"] for number in range(299)]
            assert np.abs(np.array(stored) - expected).max() < 1e-5
            assert verify_collection(client, "c", second, vector_name="care").problems == []
