"""The main paths against a server: the stand-in on a real socket, and a real one where there is one."""

import os
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant import Document, IngestSettings, Retriever, ingest, native_bm25
from care_qdrant.index.promote import promote_collection
from care_qdrant.index.publish import publish_collection, roll_back
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.contracts import SparseContract
from tests.databases import require_added_vectors
from tests.standin.server import StandIn
from tests.tiny import HashModel, medical_texts

DOCUMENTS = [Document(f"d{number}", text) for number, text in enumerate(medical_texts(300))]


REAL = ("real-http", "real-grpc")


@pytest.fixture(params=["stand-in", *(pytest.param(name, marks=pytest.mark.server) for name in REAL)])
def server(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """A client of a server, and nothing left there afterwards."""
    if request.param == "stand-in":
        with StandIn() as stand_in, open_client(url=stand_in.url) as client:
            yield client
        return
    url = request.getfixturevalue("real_url")
    grpc_port = int(os.environ["QDRANT_GRPC_PORT"]) if "QDRANT_GRPC_PORT" in os.environ else None
    with open_client(url=url, grpc=request.param == "real-grpc", grpc_port=grpc_port) as client:
        before = {found.name for found in client.get_collections().collections}
        yield client
        for found in client.get_collections().collections:
            if found.name not in before and found.name.startswith("care-test-"):
                client.delete_collection(found.name)


@pytest.fixture
def collection() -> str:
    return f"care-test-{uuid.uuid4().hex[:8]}"


def test_promote_publish_and_roll_back(server: QdrantClient, collection: str, tmp_path: Path) -> None:
    model, live = HashModel(max_tokens=512), f"{collection}-live"
    with open_client(path=tmp_path) as folder:
        ingest(DOCUMENTS[:60], model, folder, "corpus", settings=IngestSettings(sparse=True))
        promoted = promote_collection(Collection(folder, "corpus"), Collection(server, collection))
        again = promote_collection(Collection(folder, "corpus"), Collection(server, collection))
    assert (promoted.added, again.added, again.changed, again.unchanged) == (60, 0, 0, 60)

    first = publish_collection(server, collection, live)
    ingest(DOCUMENTS[60:70], model, server, collection, settings=IngestSettings(sparse=True))
    second = publish_collection(server, collection, live)
    assert (first.version, second.version) == (f"{live}_v1", f"{live}_v2")
    assert second.known_items is not None
    assert second.known_items.found >= 0.95 * second.known_items.asked
    assert (server.count(live, exact=True).count, roll_back(server, live).version) == (70, f"{live}_v1")
    assert server.count(live, exact=True).count == 60
    [hits] = Retriever(server, live, model).search([DOCUMENTS[7].text], top_k=1)  # type: ignore[arg-type]
    assert hits[0].document_id == "d7"


@pytest.mark.parametrize("length", [200.02333333333334, 0.1 + 0.2, 1 / 3, 187.35000000000002])
def test_the_constants_that_enter_a_hash_come_back_bit_for_bit(
    server: QdrantClient, collection: str, length: float
) -> None:
    server.create_collection(collection, {"v": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    contract = SparseContract("analyser", k1=1.2, b=0.75, average_length=length)
    Collection(server, collection).write_contract("bm25", contract)
    assert Collection(server, collection).schema.contracts == {"bm25": contract}


def test_points_go_over_grpc_by_themselves(
    server: QdrantClient, collection: str, request: pytest.FixtureRequest
) -> None:
    target = Collection(server, collection)
    ingest(DOCUMENTS[:20], HashModel(max_tokens=512), server, collection)
    is_real = "real" in request.node.callspec.id
    assert target.upsert_over_grpc() is is_real
    assert (server.count(collection, exact=True).count, target.count_with_vector("hash-model")) == (20, 20)


@pytest.mark.server
def test_the_servers_own_bm25_is_searched(
    server: QdrantClient, collection: str, request: pytest.FixtureRequest
) -> None:
    """The server makes the terms of documents and queries; the stand-in cannot."""
    if "stand-in" in request.node.name:
        pytest.skip("the stand-in has no BM25 of its own")
    model = HashModel(max_tokens=512)
    ingest(DOCUMENTS[:50], model, server, collection)
    require_added_vectors(server)
    sparse = models.SparseVectorConfig(modifier=models.Modifier.IDF)
    server.create_vector_name(collection, "native", models.SparseVectorNameConfig(sparse=sparse))
    records, _ = server.scroll(collection, limit=100)
    texts = {record.id: (record.payload or {})["text"] for record in records}
    points = [models.PointVectors(id=key, vector={"native": native_bm25(text)}) for key, text in texts.items()]
    server.update_vectors(collection, points, wait=True)
    for mode in ("sparse", "hybrid"):
        retriever = Retriever(
            server, collection, model, mode=mode, sparse_vector_name="native", sparse_encoder=native_bm25
        )
        [[hit]] = retriever.search([DOCUMENTS[7].text], top_k=1)
        assert hit.document_id == "d7"


CHINESE = ["糖尿病人能吃西瓜吗", "高血压患者可以喝酒", "西瓜含糖吗"]


@pytest.mark.server
def test_a_llama_index_store_writes_and_searches_the_servers_own_bm25(
    server: QdrantClient, collection: str, request: pytest.FixtureRequest
) -> None:
    """The vectors of the nodes are all equal, so that only the terms, which the server made, tell them apart."""
    if "stand-in" in request.node.name:
        pytest.skip("the stand-in has no BM25 of its own")
    native = partial(native_bm25, tokenizer=models.TokenizerType.MULTILINGUAL)
    for number in range(2):
        # The second store finds the collection that the first one created.
        store = CareVectorStore(
            collection, server, vector_name="dense", sparse_encoder=native, sparse_vector_name="native"
        )
        store.add([TextNode(text=text, embedding=[1.0, 0.0]) for text in CHINESE[number::2]])
    sparse = server.get_collection(collection).config.params.sparse_vectors
    assert sparse is not None and sparse["native"].modifier == models.Modifier.IDF
    for mode in (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID):
        asked = VectorStoreQuery(query_embedding=[1.0, 0.0], query_str="高血压喝酒", mode=mode, similarity_top_k=1)
        [node] = store.query(asked).nodes or ()
        assert node.get_content() == CHINESE[1]
    asked = VectorStoreQuery(query_str="西瓜", mode=VectorStoreQueryMode.SPARSE, similarity_top_k=3)
    assert {node.get_content() for node in store.query(asked).nodes or ()} == {CHINESE[0], CHINESE[2]}
