"""`CareVectorStore`: the requests of a check, aliases that are switched, collections that are dropped, threads."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import AsyncQdrantClient, QdrantClient, models

from care_qdrant.errors import FingerprintMismatch
from care_qdrant.qdrant.connection import open_client
from tests.llama import collections as made
from tests.llama.collections import DOCUMENTS, NAME, fill, node_id, vector
from tests.standin import StandIn
from tests.tiny import HashModel, point_alias

QUERY = VectorStoreQuery(query_embedding=vector(DOCUMENTS[0].text))
SEARCH = [("POST", "/collections/corpus/points/query/batch")]


@pytest.fixture
def client(server: StandIn) -> Iterator[QdrantClient]:
    with open_client(url=server.url) as client:
        yield client


def best(store: CareVectorStore) -> tuple[str | None, float]:
    result = store.query(QUERY)
    return (result.nodes or [])[0].ref_doc_id, (result.similarities or [])[0]


def node(text: str, document_id: str) -> TextNode:
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document_id)}
    return TextNode(id_=str(uuid.uuid4()), text=text, relationships=source, embedding=vector(text))


def test_an_empty_collection_is_sampled_until_it_is_not(
    server: StandIn, client: QdrantClient, embedding: CareEmbedding
) -> None:
    fill(client)
    client.delete(NAME, models.Filter())
    store = CareVectorStore(NAME, client, embedding=embedding)
    for samples in (1, 2):
        store.query(QUERY)
        assert server.count("POST", "/points/scroll") == 1 + samples
    store.add([node("新的", "d9")])
    for _ in range(2):
        server.requests.clear()
        store.query(QUERY)
    assert server.count("POST", "/points/scroll") == 0


def test_a_switched_alias_is_not_followed_before_it_is_checked(qdrant: QdrantClient, embedding: CareEmbedding) -> None:
    """Neither by queries nor by writes, whose vectors the other model would not understand."""
    fill(qdrant)
    fill(qdrant, contract=HashModel(salt="retrained").contract(), collection="corpus_v2")
    point_alias(qdrant, "live", NAME)
    store = CareVectorStore("live", qdrant, embedding=embedding)
    point_alias(qdrant, "live", "corpus_v2")
    assert best(store) == ("d0", pytest.approx(1))
    assert store.score(vector(DOCUMENTS[1].text), [node_id(DOCUMENTS[1])]) == {node_id(DOCUMENTS[1]): pytest.approx(1)}
    store.add([node("新的", "d9")])
    store.delete("d1")
    store.delete_nodes([node_id(DOCUMENTS[2])])
    assert {one.ref_doc_id for one in store.get_nodes()} == {"d0", "d3", "d9"}
    assert (qdrant.count(NAME).count, qdrant.count("corpus_v2").count) == (3, 4)


@pytest.mark.parametrize("operation", ["query", "get_nodes", "add", "delete", "delete_nodes", "score"])
def test_a_dropped_collection_is_resolved_again_once(
    qdrant: QdrantClient, embedding: CareEmbedding, operation: str
) -> None:
    fill(qdrant)
    fill(qdrant, made.haystack, collection="corpus_v2")
    point_alias(qdrant, "live", NAME)
    store = CareVectorStore("live", qdrant, embedding=embedding)
    assert best(store) == ("d0", pytest.approx(1))
    point_alias(qdrant, "live", "corpus_v2")
    qdrant.delete_collection(NAME)
    arguments: Any = {
        "query": QUERY,
        "get_nodes": None,
        "add": [node("新的", "d9")],
        "delete": "d1",
        "delete_nodes": [node_id(DOCUMENTS[1])],
    }
    if operation == "score":
        assert len(store.score(vector("x"), [node_id(DOCUMENTS[0])])) == 1
    else:
        getattr(store, operation)(arguments[operation])
    expected = {"add": {"d0", "d1", "d2", "d3", "d9"}, "delete": {"d0", "d2", "d3"}}
    expected["delete_nodes"] = expected["delete"]
    there = {one.ref_doc_id for one in store.get_nodes()}
    assert there == expected.get(operation, {"d0", "d1", "d2", "d3"}), "read as Haystack wrote them"


async def test_the_successor_of_a_dropped_collection_is_checked(qdrant: QdrantClient, embedding: CareEmbedding) -> None:
    fill(qdrant)
    fill(qdrant, contract=HashModel(salt="retrained").contract(), collection="corpus_v2")
    point_alias(qdrant, "live", NAME)
    store = CareVectorStore("live", qdrant, embedding=embedding)
    point_alias(qdrant, "live", "corpus_v2")
    qdrant.delete_collection(NAME)
    with pytest.raises(FingerprintMismatch, match="'live'"):
        store.query(QUERY)
    with pytest.raises(FingerprintMismatch, match="'live'"):
        await store.aquery(QUERY)
    with pytest.raises(FingerprintMismatch, match="'live'"):
        store.add([node("新的", "d9")])
    assert qdrant.count("corpus_v2").count == 4


async def test_an_async_client_goes_the_same_way(
    server: StandIn, client: QdrantClient, embedding: CareEmbedding
) -> None:
    fill(client)
    fill(client, made.langchain, collection="corpus_v2")
    point_alias(client, "live", NAME)
    aclient = AsyncQdrantClient(url=server.url, check_compatibility=False)
    store = CareVectorStore("live", aclient=aclient, embedding=embedding)
    server.requests.clear()
    await store.aquery(QUERY)
    assert [(request.method, request.path) for request in server.requests] == SEARCH, "checked when it was opened"
    point_alias(client, "live", "corpus_v2")
    client.delete_collection(NAME)
    await store.async_add([node("新的", "d9")])
    assert {one.ref_doc_id for one in await store.aget_nodes()} == {"d0", "d1", "d2", "d3", "d9"}
    await aclient.close()


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("fault", ["500", "429", "reset"])
async def test_a_search_is_tried_again(
    server: StandIn, client: QdrantClient, embedding: CareEmbedding, fault: str, use_async: bool
) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    server.faults.add(fault, times=2, method="POST", path="/points/query/batch$")
    answer = await store.aquery(QUERY) if use_async else store.query(QUERY)
    assert answer.nodes and answer.nodes[0].ref_doc_id == "d0"


def test_a_write_is_tried_again(server: StandIn, client: QdrantClient, embedding: CareEmbedding) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    server.faults.add("500", times=2, method="POST", path="/points/batch$")
    store.add([node("新的", "d9")])
    assert client.count(NAME).count == 5


@pytest.mark.parametrize("unnamed", [False, True])
def test_an_embedded_database_is_searched_while_it_is_written(embedding: CareEmbedding, unnamed: bool) -> None:
    """It is not made for threads: without one lock for all callers numpy finds its arrays changed under it."""
    client = QdrantClient(":memory:")
    fill(client, unnamed=unnamed)
    stores = [CareVectorStore(NAME, client, embedding=embedding) for _ in range(2)]
    done, failures, answers = threading.Event(), [], 0

    def search() -> None:
        nonlocal answers
        while not done.is_set():
            try:
                assert best(stores[0]) == ("d0", pytest.approx(1))
                asyncio.run(stores[1].aquery(QUERY))
                answers += 1
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        stores[1].add([node(f"第{number}批第{n}条", f"new-{n}") for n in range(64)])
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert answers
    assert client.count(NAME).count == 4 + 20 * 64
    client.close()
