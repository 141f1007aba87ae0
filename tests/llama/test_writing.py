"""Points as `CareVectorStore.add` leaves them behind."""

import asyncio
import logging
import uuid
from typing import Any

import pytest
from llama_index.core import Document as LlamaDocument
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_index.embeddings.care import CareEmbedding, CareNodeText
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.errors import EncodingError, InputError, NoCollection
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.search.retriever import Retriever
from tests.llama import collections as made
from tests.llama.collections import DOCUMENTS, NAME, WRITERS, Write, fill, filtered, find, node_id, vector
from tests.tiny import HashModel, point_alias


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_vector_that_no_search_would_find_is_refused(client: QdrantClient, value: float) -> None:
    """A server takes them: zeros over HTTP, numbers that are none over gRPC."""
    nodes = [TextNode(id_=str(uuid.uuid4()), text="x", embedding=[each] * 3) for each in (1.0, value)]
    with pytest.raises(EncodingError, match=f"the vector of node {nodes[1].node_id} has length"):
        CareVectorStore(NAME, client).add(nodes)
    assert not client.collection_exists(NAME)


def test_an_index_takes_a_node_without_text(client: QdrantClient) -> None:
    """LlamaIndex embeds its blank text; nothing can be encoded again to compare it."""
    embedding = CareEmbedding(model="built-in")
    store = CareVectorStore(NAME, client, embedding=embedding)
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    index.insert_nodes([TextNode(id_=str(uuid.uuid4()), text=text) for text in ("  ", "发烧多喝水。")])
    assert sorted(node.get_content() for node in store.get_nodes()) == ["  ", "发烧多喝水。"]
    assert embedding.encode_query([]).shape == embedding.encode_document([]).shape == (0, embedding.contract().dim)


@pytest.mark.parametrize("use_async", [False, True])
def test_the_vectors_of_other_models_stay_and_it_is_said_when_their_text_changes(
    client: QdrantClient, embedding: CareEmbedding, use_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, made.llama_index, unnamed=True)
    client.set_payload(NAME, {"_care": {"vectors": {"other": "hash"}}, "stale": 1}, [node_id(DOCUMENTS[0])])
    before = _stored(client, node_id(DOCUMENTS[0]))
    store = CareVectorStore(NAME, client, embedding=embedding)
    changed = TextNode(id_=node_id(DOCUMENTS[0]), text="新的内容", metadata={"dept": "急诊科"})
    fresh = TextNode(id_=str(uuid.uuid4()), text="全新的")
    for node in (changed, fresh):
        node.embedding = vector(node.text)
    for times_said in (2, 0):  # of the new text, and of the new point
        caplog.clear()
        if use_async:
            asyncio.run(store.async_add([changed, fresh]))
        else:
            store.add([changed, fresh])
        assert len(caplog.records) == times_said
    after = _stored(client, node_id(DOCUMENTS[0]))
    assert after.vector[""] == before.vector[""]
    assert after.payload["dept"] == "急诊科"
    assert after.payload["_care"] == {"vectors": {"other": "hash"}}
    assert "stale" not in after.payload
    assert find(store, "新的内容") == ["新的内容"]
    assert find(store, "全新的") == ["全新的"]
    assert client.count(NAME).count == 5


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_added_is_filtered_read_and_deleted_as_what_was_there(
    client: QdrantClient, embedding: CareEmbedding, write: Write
) -> None:
    fill(client, write)
    store = CareVectorStore(NAME, client, embedding=embedding)
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d9")}
    of_tools = dict.fromkeys(["text", "page_content", "content", "metadata", "meta"], "a value of the user")
    metadata = {"dept": "急诊科", **of_tools}
    node = TextNode(id_=str(uuid.uuid4()), text="新的", metadata=metadata, relationships=source)
    node.embedding = vector(node.text)
    store.add([node])
    assert filtered(store, MetadataFilter(key="dept", value="急诊科")) == ["d9"]
    assert find(store, "x", 9, doc_ids=["d9"]) == ["新的"]
    layout = guess_layout([dict(write(DOCUMENTS[0]))])
    added = _stored(client, node.node_id).payload
    assert (layout.text(added), layout.ref_doc_id(added)) == ("新的", "d9")
    store.delete("d9")
    assert client.count(NAME).count == 4


def test_care_ingest_sees_what_was_added_over_its_points(
    client: QdrantClient, embedding: CareEmbedding, hash_model: HashModel
) -> None:
    settings = IngestSettings(sparse=True)
    ingest(DOCUMENTS, hash_model, client, NAME, settings=settings)
    store = CareVectorStore(NAME, client, embedding=embedding)
    (node,) = store.get_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="doc_id", value="d0")]))
    node.set_content("新的内容")
    node.embedding = vector("新的内容")
    store.add([node])
    ((hit,),) = Retriever(client, NAME, hash_model).search(["新的内容"], top_k=1)
    assert (hit.document_id, hit.text) == ("d0", "新的内容")
    report = ingest(DOCUMENTS, hash_model, client, NAME, settings=settings)
    assert (report.encoded, report.unchanged) == (1, 3)
    assert find(store, DOCUMENTS[0].text) == [DOCUMENTS[0].text]


def test_an_id_that_qdrant_does_not_take_is_explained(client: QdrantClient) -> None:
    with pytest.raises(InputError, match="'doc-1' is not a UUID"):
        CareVectorStore(NAME, client).add([TextNode(id_="doc-1", text="x", embedding=[1.0])])


def test_one_id_may_be_written_in_several_ways(client: QdrantClient) -> None:
    written = uuid.uuid4()
    forms = (str(written), str(written).upper(), written.hex, f"{{{written}}}", written.urn)
    for form in forms:
        nodes = [TextNode(id_=name, text=text, embedding=[1.0]) for name, text in ((forms[0], "x"), (form, "y"))]
        with pytest.raises(InputError, match="two different nodes have the id"):
            CareVectorStore(NAME, client).add(nodes)


def test_two_nodes_of_one_id_are_refused_before_one_is_lost(client: QdrantClient) -> None:
    node = TextNode(id_=str(uuid.uuid4()), text="x", embedding=[1.0])
    store = CareVectorStore(NAME, client)
    with pytest.raises(InputError, match=f"two different nodes have the id {node.node_id}"):
        store.add([node, node.model_copy(update={"text": "y"})])
    assert not client.collection_exists(NAME)
    assert store.add([node, node.model_copy()]) == [node.node_id] * 2
    assert client.count(NAME).count == 1


def test_a_default_index_warns_once(
    client: QdrantClient, embedding: CareEmbedding, caplog: pytest.LogCaptureFixture
) -> None:
    """LlamaIndex embeds ten nodes a call, and writes them in batches; its splitter knows no tokens of ours."""
    documents = [LlamaDocument(text="长" * 300, metadata={"file_name": f"{number}.md"}) for number in range(30)]
    context = StorageContext.from_defaults(vector_store=CareVectorStore(NAME, client, embedding=embedding))
    with caplog.at_level(logging.WARNING):
        VectorStoreIndex.from_documents(documents, context, embed_model=embedding, insert_batch_size=10)
    [said] = [record.getMessage() for record in caplog.records]
    assert "cut at 64 tokens" in said and "CareNodeParser" in said


def test_metadata_in_the_embedded_text_beside_points_of_care_ingest_is_said_once(
    client: QdrantClient, embedding: CareEmbedding, hash_model: HashModel, caplog: pytest.LogCaptureFixture
) -> None:
    ingest(DOCUMENTS, hash_model, client, NAME)
    document = LlamaDocument(text=DOCUMENTS[0].text, metadata={"dept": "内科", "title": "标题"})
    store = CareVectorStore(NAME, client, embedding=embedding)
    context = StorageContext.from_defaults(vector_store=store)
    with caplog.at_level(logging.WARNING, "llama_index.vector_stores.care"):
        for _ in range(2):
            VectorStoreIndex.from_documents([document], context, embed_model=embedding)
    assert len(caplog.records) == 1
    caplog.clear()
    VectorStoreIndex.from_documents([document], context, embed_model=embedding, transformations=[CareNodeText()])
    assert not caplog.records
    assert find(store, f"标题 {DOCUMENTS[0].text}") == [DOCUMENTS[0].text]


def _stored(client: QdrantClient, point_id: str) -> Any:
    return client.retrieve(NAME, [point_id], with_vectors=True)[0]


def test_a_cleared_store_is_empty_until_nodes_are_added(client: QdrantClient) -> None:
    store, node = CareVectorStore(NAME, client), TextNode(id_=str(uuid.uuid4()), text="发烧", embedding=[1.0, 0.0])
    question = VectorStoreQuery(query_embedding=[1.0, 0.0])
    with pytest.raises(NoCollection):  # its name may be mistyped
        store.query(question)
    for _ in range(2):
        store.add([node])
        assert store.query(question).ids == [node.node_id]
        store.clear()
        assert store.query(question).ids == store.get_nodes() == []
        assert store.score([1.0, 0.0], [node.node_id]) == {}
        store.delete_nodes([node.node_id])
    CareVectorStore(NAME, client).add([node])
    assert store.query(question).ids == [node.node_id]


def test_a_store_that_was_opened_by_an_alias_is_not_cleared_in_silence(client: QdrantClient) -> None:
    CareVectorStore(NAME, client).add([TextNode(id_=str(uuid.uuid4()), text="发烧", embedding=[1.0, 0.0])])
    point_alias(client, "live", NAME)
    with pytest.raises(InputError, match="nothing was deleted"):
        CareVectorStore("live", client).clear()
