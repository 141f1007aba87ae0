"""Payloads that LlamaIndex did not write, as `CareVectorStore` reads them."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import BaseNode, ImageNode, IndexNode, TextNode
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from tests.llama import collections as made
from tests.llama.collections import DOCUMENTS, NAME, WRITERS, Write, fill, filtered, find, node_id, vector


@pytest.mark.parametrize("write", WRITERS)
def test_filters_reach_the_metadata_of_every_writer(client: QdrantClient, write: Write) -> None:
    fill(client, write)
    store = CareVectorStore(NAME, client)
    op = FilterOperator

    def one(key: str, operator: FilterOperator, value: Any) -> MetadataFilter:
        return MetadataFilter(key=key, operator=operator, value=value)

    assert filtered(store, one("dept", op.EQ, "心内科")) == ["d0"]
    assert filtered(store, one("dept", op.NE, "心内科")) == ["d1", "d2", "d3"], "d3 has no dept"
    assert filtered(store, one("year", op.IN, [2020.0, 2023])) == ["d0", "d3"]
    assert filtered(store, one("year", op.GTE, 2022)) == ["d2", "d3"]
    assert filtered(store, one("tags", op.CONTAINS, "用药")) == ["d1", "d2"]
    assert filtered(store, one("tags", op.ALL, ["用药", "慢病"])) == ["d2"]
    assert filtered(store, one("dept", op.IS_EMPTY, None)) == ["d3"]
    either = one("dept", op.EQ, "心内科"), one("tags", op.ALL, ["用药", "慢病"])
    assert filtered(store, *either, condition="or") == ["d0", "d2"]
    assert filtered(store, *either, condition="not") == ["d1", "d3"]
    nested = MetadataFilters(filters=list(either), condition=FilterCondition.OR)
    assert filtered(store, nested, one("year", op.LT, 2022)) == ["d0"]


@pytest.mark.parametrize("write", WRITERS)
def test_nodes_come_by_group_and_with_a_least_score(client: QdrantClient, write: Write) -> None:
    fill(client, write)
    store = CareVectorStore(NAME, client)
    asked = VectorStoreQuery(query_embedding=vector(DOCUMENTS[1].text), similarity_top_k=10)
    everything = store.query(asked)
    by_dept = store.query(asked, group_by="dept")
    first: dict[str, str] = {}
    for node in everything.nodes or ():
        if (dept := node.metadata.get("dept")) is not None:
            first.setdefault(dept, node.get_content())
    assert [node.get_content() for node in by_dept.nodes or ()] == list(first.values())
    several = store.query(asked, group_by="tags", group_size=4)
    assert sum("用药" in node.metadata["tags"] for node in several.nodes or ()) > 1
    least = (everything.similarities or [])[1] - 1e-5
    above = store.query(asked, score_threshold=least)
    assert [node.get_content() for node in above.nodes or ()] == [
        node.get_content() for node in (everything.nodes or ())[:2]
    ]
    for options, problem in (
        ({"group_by": "department"}, "group_by: no point of"),
        ({"group_size": 2}, "group_size is 2 and no group_by"),
    ):
        with pytest.raises(InputError, match=problem):
            store.query(asked, **options)
    with pytest.raises(InputError, match="group_by is not for queries of mode MMR"):
        store.query(replace(asked, mode=VectorStoreQueryMode.MMR), group_by="dept")
    retriever = VectorStoreIndex.from_vector_store(store, MockEmbedding(32)).as_retriever(
        vector_store_kwargs={"score_threshold": 2.0}
    )
    assert retriever.retrieve("血压") == []


@pytest.mark.parametrize("write", WRITERS)
def test_documents_are_selected_and_deleted_by_their_own_id(client: QdrantClient, write: Write) -> None:
    fill(client, write)
    store = CareVectorStore(NAME, client)
    assert find(store, "x", 9, doc_ids=["d1"]) == [DOCUMENTS[1].text]
    if write is made.langchain:  # `source` may as well be "news" on half of the points
        with pytest.raises(InputError, match=r"points have it as their 'source'.*nothing was deleted"):
            store.delete("d1")
        client.set_payload(NAME, {"doc_id": "d1"}, [node_id(DOCUMENTS[1])], key="metadata")
    store.delete("d1")
    store.delete("nobody")
    assert client.count(NAME).count == 3
    assert find(store, "x", 9, doc_ids=["d1"]) == []


def test_ids_of_documents_may_be_stored_as_numbers(client: QdrantClient) -> None:
    """A node has the id as a text, which selects and deletes what it came from."""
    fill(client, lambda document: {"text": document.text, "doc_id": int(document.id[1:])})
    store = CareVectorStore(NAME, client)
    [node] = store.get_nodes([node_id(DOCUMENTS[2])])
    assert find(store, "x", 9, doc_ids=[node.ref_doc_id]) == [DOCUMENTS[2].text]
    store.delete(node.ref_doc_id or "")
    assert [node.ref_doc_id for node in store.get_nodes()].count("2") == 0
    assert client.count(NAME).count == 3


@pytest.mark.parametrize("written", ["07", "007", "7" * 5000, "+7", "7.0", " 7"])
def test_a_text_that_is_not_how_a_number_is_written_is_another_id(client: QdrantClient, written: str) -> None:
    dense = models.VectorParams(size=2, distance=models.Distance.COSINE)
    client.create_collection(NAME, vectors_config={"care": dense})
    payload = {"text": "t", "doc_id": 7}
    client.upsert(NAME, [models.PointStruct(id=7, vector={"care": [1.0, 0.0]}, payload=payload)])
    store = CareVectorStore(NAME, client)
    assert store.get_nodes([written]) == []
    for named in ({"doc_ids": [written]}, {"node_ids": [written]}):
        asked = VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=2, **named)
        assert store.query(asked).ids == []
    store.delete_nodes([written])
    store.delete(written)
    assert client.count(NAME).count == 1
    store.delete("7")
    assert client.count(NAME).count == 0


def test_a_query_for_the_nodes_of_no_document_finds_none(client: QdrantClient, embedding: CareEmbedding) -> None:
    """The documents that a user may see can be none at all."""
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    for allowed in ([], ["d1"], ["d1", "d2"]):
        hits = index.as_retriever(similarity_top_k=9, doc_ids=allowed).retrieve("高血压")
        assert sorted(hit.node.ref_doc_id or "" for hit in hits) == allowed


def test_an_id_that_is_no_text_is_named(client: QdrantClient) -> None:
    fill(client)
    store: Any = CareVectorStore(NAME, client)
    for call in (
        lambda: store.get_nodes([7]),
        lambda: store.delete_nodes([node_id(DOCUMENTS[0]), None]),
        lambda: find(store, "x", node_ids=[7]),
        lambda: find(store, "x", doc_ids=[None]),
    ):
        with pytest.raises(InputError, match=r"is among the .* ids; expected texts"):
            call()
    assert client.count(NAME).count == len(DOCUMENTS)


def test_one_id_is_not_taken_for_a_list_of_characters(client: QdrantClient) -> None:
    fill(client)
    store: Any = CareVectorStore(NAME, client)
    one = node_id(DOCUMENTS[0])
    for call in (
        lambda: store.get_nodes(one),
        lambda: store.delete_nodes(one),
        lambda: find(store, "x", node_ids=one),
        lambda: find(store, "x", doc_ids="d0"),
    ):
        with pytest.raises(InputError, match="is given where a list of"):
            call()
    with pytest.raises(InputError, match="nothing was deleted"):
        store.delete(["d0"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"score_treshold": 0.9}, "a query has no option score_treshold=; its options: qdrant_filters, "),
        ({"score_threshold": float("nan")}, "option score_threshold= of a query is nan: expected float | None, finite"),
        ({"score_threshold": "high"}, "option score_threshold= of a query is 'high': expected float | None"),
        ({"qdrant_filters": "dept=1"}, "option qdrant_filters= of a query is 'dept=1': expected Filter | None"),
        (
            {"qdrant_filters": {"must": 5}},
            "option qdrant_filters= of a query is {'must': 5}: expected Filter | None (wrong at 'must')",
        ),
        (
            {"search_params": {"exakt": True}},
            "option search_params= of a query is {'exakt': True}: expected SearchParams | None (wrong at ",
        ),
        ({"mmr_threshold": 2}, "option mmr_threshold= of a query is 2: expected float | None, <= 1"),
    ],
)
def test_an_option_of_a_query_that_cannot_be_read_is_named(
    client: QdrantClient, options: dict[str, Any], problem: str
) -> None:
    fill(client)
    asked = VectorStoreQuery(query_embedding=vector("x"), similarity_top_k=2)
    with pytest.raises(InputError) as refused:
        CareVectorStore(NAME, client).query(asked, **options)
    assert str(refused.value).startswith(problem)
    assert "validation error" not in str(refused.value)


def test_filters_of_another_form_are_named(client: QdrantClient) -> None:
    fill(client)
    store: Any = CareVectorStore(NAME, client)
    for filters in ({"dept": "内科"}, [MetadataFilter(key="dept", value="x")], MetadataFilter(key="dept", value="x")):
        for call in (
            lambda filters=filters: store.get_nodes(filters=filters),
            lambda filters=filters: store.delete_nodes(filters=filters),
            lambda filters=filters: find(store, "x", filters=filters),
        ):
            with pytest.raises(InputError, match=r"filters= is a .*; expected MetadataFilters"):
                call()


def test_a_point_without_text_does_not_fail_the_query(client: QdrantClient) -> None:
    fill(client, made.langchain)
    client.set_payload(NAME, {"page_content": None}, [node_id(DOCUMENTS[0])])
    assert find(CareVectorStore(NAME, client), DOCUMENTS[0].text) == [""]


def test_a_collection_without_text_names_its_keys(client: QdrantClient) -> None:
    fill(client, lambda document: dict(document.metadata))
    with pytest.raises(InputError, match="keys: dept, tags, year"):
        CareVectorStore(NAME, client)


def test_the_text_can_be_anywhere(client: QdrantClient) -> None:
    fill(client, lambda document: {"record": {"report": document.text}, "title": "x"})
    store = CareVectorStore(NAME, client, text_field="record.report")
    assert find(store, DOCUMENTS[0].text) == [DOCUMENTS[0].text]


def test_points_with_numbers_for_ids_are_scored_selected_and_deleted(client: QdrantClient) -> None:
    store = CareVectorStore(NAME, _numbered(client, 4))
    found = store.query(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=2)).ids or []
    assert found == ["0", "1"]
    assert list(store.score([1.0, 0.0], [*found, "no id"])) == found
    assert [node.get_content() for node in store.get_nodes(found)] == ["t0", "t1"]
    one = VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=4, node_ids=["1"])
    assert store.query(one).ids == ["1"]
    store.delete_nodes(found)
    assert [node.node_id for node in store.get_nodes()] == ["2", "3"]


def test_a_collection_that_is_filled_after_it_was_opened(client: QdrantClient) -> None:
    dense = models.VectorParams(size=32, distance=models.Distance.COSINE)
    client.create_collection(NAME, vectors_config={"care": dense})
    store = CareVectorStore(NAME, client)
    assert store.get_nodes() == []
    for document in DOCUMENTS:
        vectors = {"care": vector(document.text)}
        client.upsert(
            NAME, [models.PointStruct(id=node_id(document), vector=vectors, payload={**made.langchain(document)})]
        )
    assert find(store, DOCUMENTS[0].text) == [DOCUMENTS[0].text]
    assert filtered(store, MetadataFilter(key="year", value=2021)) == ["d1"]


@pytest.mark.parametrize("write", [made.langchain, made.haystack, made.plain])
def test_what_keeps_metadata_below_a_key_is_deleted_by_their_own_names(client: QdrantClient, write: Write) -> None:
    fill(client, lambda document: write(replace(document, metadata={**document.metadata, "source.system": "old"})))
    client.set_payload(NAME, write(replace(DOCUMENTS[2], metadata={"source.system": "new"})), [node_id(DOCUMENTS[2])])
    store = CareVectorStore(NAME, client)
    others = MetadataFilter(key="source.system", operator=FilterOperator.NE, value="new")
    assert filtered(store, others) == ["d0", "d1", "d3"]
    store.delete_nodes(filters=MetadataFilters(filters=[others]))
    assert [node.ref_doc_id for node in store.get_nodes()] == ["d2"]


def test_nodes_come_by_the_thousand(client: QdrantClient) -> None:
    store = CareVectorStore(NAME, _numbered(client, 10_050))
    assert len(store.get_nodes()) == 10_050
    assert len(store.get_nodes(limit=1_500)) == 1_500


def test_node_ids_narrow_a_filter(client: QdrantClient) -> None:
    fill(client)
    store = CareVectorStore(NAME, client)
    either = MetadataFilters(
        filters=[MetadataFilter(key="year", value=2020), MetadataFilter(key="year", value=2021)],
        condition=FilterCondition.OR,
    )
    assert [node.ref_doc_id for node in store.get_nodes([node_id(DOCUMENTS[0])], either)] == ["d0"]
    store.delete_nodes([node_id(DOCUMENTS[0])], either)
    assert client.count(NAME).count == 3


@pytest.mark.parametrize("other", [ImageNode(text="图", image_url="x"), IndexNode(text="章", index_id="c")])
def test_an_index_or_image_node_hides_no_text(
    client: QdrantClient, embedding: CareEmbedding, tmp_path: Path, other: BaseNode
) -> None:
    """The retriever of LlamaIndex's index names such nodes, and those alone, in every query."""
    context = StorageContext.from_defaults(vector_store=CareVectorStore(NAME, client, embedding=embedding))
    texts = [TextNode(id_=node_id(document), text=document.text) for document in DOCUMENTS]
    index = VectorStoreIndex([*texts, other], storage_context=context, embed_model=embedding)
    everything = {other.node_id, *map(node_id, DOCUMENTS)}

    def found(index: Any, **options: Any) -> set[str]:
        asked = index.as_retriever(similarity_top_k=9, **options).retrieve("高血压")
        return {hit.node.node_id for hit in asked}

    assert found(index) == everything
    assert found(index, vector_store_query_mode="mmr") == everything
    context.persist(str(tmp_path))
    again = StorageContext.from_defaults(
        persist_dir=str(tmp_path), vector_store=CareVectorStore(NAME, client, embedding=embedding)
    )
    assert found(load_index_from_storage(again, embed_model=embedding)) == everything  # type: ignore[no-untyped-call]
    before = index.as_retriever(similarity_top_k=9)
    more = ImageNode(text="另一张图", image_url="y")
    index.insert_nodes([more])
    assert {hit.node.node_id for hit in before.retrieve("高血压")} == everything | {more.node_id}
    index.delete_nodes([more.node_id])
    index.delete_nodes([other.node_id])
    assert found(index) == everything - {other.node_id}


def test_nodes_that_somebody_names_restrict_a_query(client: QdrantClient, embedding: CareEmbedding) -> None:
    store = CareVectorStore(NAME, client, embedding=embedding)
    images = [ImageNode(text=f"图{number}", image_url="x") for number in range(2)]
    text = TextNode(text="高血压")
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex([*images, text], storage_context=context, embed_model=embedding)
    for named in ([text], [images[0]], [images[0], text]):
        ids = [node.node_id for node in named]
        hits = VectorIndexRetriever(index, similarity_top_k=9, node_ids=ids).retrieve("高血压")
        assert {hit.node.node_id for hit in hits} == set(ids)
    missing = VectorIndexRetriever(index, similarity_top_k=9, node_ids=[str(uuid.uuid4())])
    assert missing.retrieve("高血压") == []
    reopened = CareVectorStore(NAME, client, embedding=embedding)
    vector = embedding.get_query_embedding("高血压")
    for named, count in ((images[:1], 1), (images, 3)):  # all of them are what an index names
        ids = [node.node_id for node in named]
        asked = VectorStoreQuery(query_embedding=vector, node_ids=ids, similarity_top_k=9)
        assert len(reopened.query(asked).nodes or ()) == count


def test_a_text_in_the_place_of_an_image_restricts_a_query(client: QdrantClient) -> None:
    store = CareVectorStore(NAME, client)
    texts = [
        TextNode(id_=node_id(document), text=document.text, embedding=vector(document.text)) for document in DOCUMENTS
    ]
    first, *others = texts
    image = ImageNode(id_=first.node_id, text=first.text, image_url="x", embedding=first.embedding)
    query = VectorStoreQuery(query_embedding=first.embedding, similarity_top_k=9, node_ids=[first.node_id])
    for put, found in ((image, {node.node_id for node in texts}), (first, {first.node_id})):
        store.add([*others, put])
        assert set(store.query(query).ids or ()) == found


def test_a_node_that_became_a_text_restricts_a_query_and_hides_no_other(
    client: QdrantClient, embedding: CareEmbedding
) -> None:
    """A page is first stored as an image, and later as the text on it; the index keeps its id on its list."""
    store = CareVectorStore(NAME, client, embedding=embedding)
    images = [ImageNode(text=f"图{number}", image_url="x") for number in range(2)]
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex([*images, TextNode(text="高血压")], storage_context=context, embed_model=embedding)
    page = images[0].node_id
    index.insert_nodes([TextNode(id_=page, text="图上的字")])
    asked = VectorStoreQuery(query_embedding=embedding.get_query_embedding("字"), node_ids=[page], similarity_top_k=9)
    assert store.query(asked).ids == [page]
    assert len(index.as_retriever(similarity_top_k=9).retrieve("字")) == 3


NO_NODES: list[object] = [None, {}, [], 7, "", "null", "{", "[1", '{"a": 1}', '{"id_": 5}', "[" * 100_000]


@pytest.mark.parametrize("content", NO_NODES, ids=lambda content: repr(content)[:12])
def test_a_payload_that_only_looks_like_a_node_is_read_as_it_is(client: QdrantClient, content: object) -> None:
    """LlamaIndex.TS and others write the same key in another form; a writer may cut it."""
    client.create_collection(NAME, {"care": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    payloads = [
        {"text": "高血压", "dept": "内科"},
        {"text": "耳鸣", "_node_content": content, "_node_type": "TextNode"},
    ]
    client.upsert(
        NAME, [models.PointStruct(id=i, vector={"care": [1.0, i]}, payload=p) for i, p in enumerate(payloads)]
    )
    store = CareVectorStore(NAME, client)
    found = store.query(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=9))
    assert [node.get_content() for node in found.nodes or ()] == ["高血压", "耳鸣"]
    assert len(store.get_nodes()) == 2


def _numbered(client: QdrantClient, count: int) -> QdrantClient:
    """Create points with numbers for ids."""
    client.create_collection(NAME, {"care": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    points = [models.PointStruct(id=i, vector={"care": [1.0, i]}, payload={"text": f"t{i}"}) for i in range(count)]
    client.upload_points(NAME, points, wait=True)
    return client
