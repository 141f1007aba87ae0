"""`CareVectorStore`: the right vector of the right model, whoever wrote the collection."""

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import AsyncQdrantClient, QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.errors import FingerprintMismatch, InputError, SchemaMismatch

from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.weights import TermWeights
from care_qdrant.errors import EncodingError, FingerprintMismatch, InputError, SchemaMismatch
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import is_embedded, open_client
from care_qdrant.search.retriever import Retriever
from tests.llama import collections as made
from tests.llama.collections import DOCUMENTS, NAME, WRITERS, Write, fill, find
from tests.tiny import HashModel


@pytest.mark.parametrize("unnamed", [False, True])
@pytest.mark.parametrize("write", WRITERS)
def test_the_named_vector_is_searched_in_every_collection(
    client: QdrantClient, embedding: CareEmbedding, write: Write, unnamed: bool
) -> None:
    fill(client, write, unnamed=unnamed)
    index = VectorStoreIndex.from_vector_store(
        CareVectorStore(NAME, client, embedding=embedding), embed_model=embedding
    )
    for document in DOCUMENTS:
        (hit,) = index.as_retriever(similarity_top_k=1).retrieve(document.text)
        assert hit.node.get_content() == document.text
        assert hit.node.ref_doc_id == document.id
        assert hit.node.metadata.get("year") == document.metadata["year"]
        assert hit.score == pytest.approx(1)


def test_the_stock_store_takes_the_other_model(client: QdrantClient) -> None:
    """The trap itself, so that we notice when it is gone."""
    fill(client, made.llama_index, unnamed=True)
    assert find(QdrantVectorStore(NAME, client, dense_vector_name="care"), DOCUMENTS[1].text) != [DOCUMENTS[1].text]


def test_the_stock_store_reads_what_we_write(client: QdrantClient, embedding: CareEmbedding) -> None:
    fill(client, made.ours)
    stock = QdrantVectorStore(NAME, client, dense_vector_name="care")
    (hit,) = (
        VectorStoreIndex.from_vector_store(stock, embed_model=embedding)
        .as_retriever(similarity_top_k=1)
        .retrieve(DOCUMENTS[2].text)
    )
    assert (hit.node.get_content(), hit.node.ref_doc_id) == (DOCUMENTS[2].text, "d2")
    assert hit.node.metadata == DOCUMENTS[2].metadata


def test_another_model_is_refused(client: QdrantClient, embedding: CareEmbedding) -> None:
    fill(client, contract=HashModel(salt="other").contract())
    with pytest.raises(FingerprintMismatch, match="care attach corpus"):
        CareVectorStore(NAME, client, embedding=embedding, vector_name="care")
    with pytest.raises(FingerprintMismatch):
        CareVectorStore(NAME, client, fingerprint="0" * 64)


def test_the_fingerprint_alone_is_enough(client: QdrantClient) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, fingerprint=HashModel().fingerprint)
    assert find(store, DOCUMENTS[0].text) == [DOCUMENTS[0].text]


def test_another_dimension_is_refused(client: QdrantClient, embedding: CareEmbedding) -> None:
    contract = VectorContract(HashModel().fingerprint, "hash-model", 64)
    fill(client)
    with pytest.raises(SchemaMismatch, match="32-dimensional"):
        CareVectorStore(NAME, client, embedding=_Contract(contract))


def test_a_vector_that_is_not_there_names_those_that_are(client: QdrantClient) -> None:
    fill(client)
    with pytest.raises(InputError, match=r"has no vector 'nope'.*'care'.*with --model naming.*--vector-name nope$"):
        CareVectorStore(NAME, client, vector_name="nope")


def test_queries_of_an_unknown_model_are_warned_of_once(
    client: QdrantClient, embedding: CareEmbedding, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client)
    find(CareVectorStore(NAME, client, embedding=embedding, check_seconds=0), "x")
    find(CareVectorStore(NAME, client, fingerprint=HashModel().fingerprint), "x")
    assert not caplog.records
    store = CareVectorStore(NAME, client, check_seconds=0)
    for text in ("x", "y"):
        find(store, text)
    (record,) = caplog.records
    assert "'care' of collection" in record.getMessage() and "was made by hash-model" in record.getMessage()


def test_a_question_in_the_other_script_is_warned_of_once(
    client: QdrantClient, embedding: CareEmbedding, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    for question in ("高血压患者要少吃盐吗", "高血壓患者要少吃鹽嗎", "耳鳴可由噪聲引起嗎"):
        find(store, question, query_str=question)
    (record,) = caplog.records
    assert "traditional" in record.getMessage() and "OpenCC (t2s)" in record.getMessage()


def test_an_unclear_choice_is_not_made(client: QdrantClient) -> None:
    dense = models.VectorParams(size=32, distance=models.Distance.COSINE)
    client.create_collection(NAME, vectors_config={"a": dense, "b": dense})
    with pytest.raises(InputError, match=r"'a' \(by another tool\), 'b' \(by another tool\), and nobody"):
        CareVectorStore(NAME, client)


async def test_an_embedded_async_client_alone_is_refused(embedding: CareEmbedding) -> None:
    aclient = AsyncQdrantClient(":memory:")
    with pytest.raises(InputError, match="give client=QdrantClient"):
        CareVectorStore(NAME, aclient=aclient, embedding=embedding)
    await aclient.close()


def find(store: QdrantVectorStore, text: str, top_k: int = 1, **query: Any) -> list[str]:
    result = store.query(VectorStoreQuery(query_embedding=vector(text), similarity_top_k=top_k, **query))
    return [node.get_content() for node in result.nodes or ()]


def filtered(store: CareVectorStore, *filters: Any, condition: str = "and") -> list[str]:
    chosen = MetadataFilters(filters=list(filters), condition=FilterCondition(condition))
    by_sync = [node.ref_doc_id or "" for node in store.get_nodes(filters=chosen)]
    searched = store.query(VectorStoreQuery(query_embedding=vector("x"), similarity_top_k=9, filters=chosen))
    assert sorted(by_sync) == sorted(node.ref_doc_id for node in searched.nodes or ())  # type: ignore[type-var]
    return sorted(by_sync)


class TestWhichVector:
    """Never the wrong one, and never without a word."""

    @pytest.mark.parametrize("unnamed", [False, True])
    @pytest.mark.parametrize("write", WRITERS)
    def test_the_named_vector_is_searched_in_every_collection(
        self, client: QdrantClient, embedding: CareEmbedding, write: Write, unnamed: bool
    ) -> None:
        fill(client, write, unnamed=unnamed)
        index = VectorStoreIndex.from_vector_store(
            CareVectorStore(NAME, client, embedding=embedding), embed_model=embedding
        )
        for document in DOCUMENTS:
            (hit,) = index.as_retriever(similarity_top_k=1).retrieve(document.text)
            assert hit.node.get_content() == document.text
            assert hit.node.ref_doc_id == document.id
            assert hit.node.metadata.get("year") == document.metadata["year"]
            assert hit.score == pytest.approx(1)

    def test_the_stock_store_takes_the_other_model(self, client: QdrantClient) -> None:
        """The trap itself, so that we notice when it is gone."""
        fill(client, made.llama_index, unnamed=True)
        assert find(QdrantVectorStore(NAME, client, dense_vector_name="care"), DOCUMENTS[1].text) != [DOCUMENTS[1].text]

    def test_the_stock_store_reads_what_we_write(self, client: QdrantClient, embedding: CareEmbedding) -> None:
        fill(client, made.ours)
        stock = QdrantVectorStore(NAME, client, dense_vector_name="care")
        (hit,) = (
            VectorStoreIndex.from_vector_store(stock, embed_model=embedding)
            .as_retriever(similarity_top_k=1)
            .retrieve(DOCUMENTS[2].text)
        )
        assert (hit.node.get_content(), hit.node.ref_doc_id) == (DOCUMENTS[2].text, "d2")
        assert hit.node.metadata == DOCUMENTS[2].metadata

    def test_another_model_is_refused(self, client: QdrantClient, embedding: CareEmbedding) -> None:
        fill(client, contract=HashModel(salt="other").contract())
        with pytest.raises(FingerprintMismatch, match="care attach corpus"):
            CareVectorStore(NAME, client, embedding=embedding, vector_name="care")
        with pytest.raises(FingerprintMismatch):
            CareVectorStore(NAME, client, fingerprint="0" * 64)

    def test_the_fingerprint_alone_is_enough(self, client: QdrantClient) -> None:
        fill(client)
        store = CareVectorStore(NAME, client, fingerprint=HashModel().fingerprint)
        assert find(store, DOCUMENTS[0].text) == [DOCUMENTS[0].text]

    def test_another_dimension_is_refused(self, client: QdrantClient, embedding: CareEmbedding) -> None:
        contract = VectorContract(HashModel().fingerprint, "hash-model", 64)
        fill(client)
        with pytest.raises(SchemaMismatch, match="32-dimensional"):
            CareVectorStore(NAME, client, embedding=_Contract(contract))

    def test_a_vector_that_is_not_there_names_those_that_are(self, client: QdrantClient) -> None:
        fill(client)
        with pytest.raises(InputError, match=r"has no vector 'nope'.*'care'.*with --model naming.*--vector-name nope$"):
            CareVectorStore(NAME, client, vector_name="nope")

    def test_queries_of_an_unknown_model_are_warned_of_once(
        self, client: QdrantClient, embedding: CareEmbedding, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(client)
        find(CareVectorStore(NAME, client, embedding=embedding, check_seconds=0), "x")
        find(CareVectorStore(NAME, client, fingerprint=HashModel().fingerprint), "x")
        assert not caplog.records
        store = CareVectorStore(NAME, client, check_seconds=0)
        for text in ("x", "y"):
            find(store, text)
        (record,) = caplog.records
        assert "'care' of collection" in record.getMessage() and "was made by hash-model" in record.getMessage()

    def test_a_question_in_the_other_script_is_warned_of_once(
        self, client: QdrantClient, embedding: CareEmbedding, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(client)
        store = CareVectorStore(NAME, client, embedding=embedding)
        for question in ("高血压患者要少吃盐吗", "高血壓患者要少吃鹽嗎", "耳鳴可由噪聲引起嗎"):
            find(store, question, query_str=question)
        (record,) = caplog.records
        assert "traditional" in record.getMessage() and "OpenCC (t2s)" in record.getMessage()

    def test_an_unclear_choice_is_not_made(self, client: QdrantClient) -> None:
        dense = models.VectorParams(size=32, distance=models.Distance.COSINE)
        client.create_collection(NAME, vectors_config={"a": dense, "b": dense})
        with pytest.raises(InputError, match=r"'a' \(by another tool\), 'b' \(by another tool\), and nobody"):
            CareVectorStore(NAME, client)

    async def test_an_embedded_async_client_alone_is_refused(self, embedding: CareEmbedding) -> None:
        aclient = AsyncQdrantClient(":memory:")
        with pytest.raises(InputError, match="give client=QdrantClient"):
            CareVectorStore(NAME, aclient=aclient, embedding=embedding)
        await aclient.close()


class TestReading:
    """Payloads that LlamaIndex did not write."""

    @pytest.mark.parametrize("write", WRITERS)
    def test_filters_reach_the_metadata_of_every_writer(self, client: QdrantClient, write: Write) -> None:
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
    def test_documents_are_selected_and_deleted_by_their_own_id(self, client: QdrantClient, write: Write) -> None:
        fill(client, write)
        store = CareVectorStore(NAME, client)
        assert find(store, "x", 9, doc_ids=["d1"]) == [DOCUMENTS[1].text]
        store.delete("d1")
        assert client.count(NAME).count == 3
        assert find(store, "x", 9, doc_ids=["d1"]) == []

    def test_a_point_without_text_does_not_fail_the_query(self, client: QdrantClient) -> None:
        fill(client, made.langchain)
        client.set_payload(NAME, {"page_content": None}, [node_id(DOCUMENTS[0])])
        assert find(CareVectorStore(NAME, client), DOCUMENTS[0].text) == [""]

    def test_a_collection_without_text_names_its_keys(self, client: QdrantClient) -> None:
        fill(client, lambda document: dict(document.metadata))
        with pytest.raises(InputError, match="keys: dept, tags, year"):
            CareVectorStore(NAME, client)

    def test_the_text_can_be_anywhere(self, client: QdrantClient) -> None:
        fill(client, lambda document: {"record": {"report": document.text}, "title": "x"})
        store = CareVectorStore(NAME, client, text_field="record.report")
        assert find(store, DOCUMENTS[0].text) == [DOCUMENTS[0].text]

    def test_points_with_numbers_for_ids_are_scored_selected_and_deleted(self, client: QdrantClient) -> None:
        store = CareVectorStore(NAME, _numbered(client, 4))
        found = store.query(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=2)).ids or []
        assert found == ["0", "1"]
        assert list(store.score([1.0, 0.0], [*found, "no id"])) == found
        assert [node.get_content() for node in store.get_nodes(found)] == ["t0", "t1"]
        one = VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=4, node_ids=["1"])
        assert store.query(one).ids == ["1"]
        store.delete_nodes(found)
        assert [node.node_id for node in store.get_nodes()] == ["2", "3"]

    def test_a_collection_that_is_filled_after_it_was_opened(self, client: QdrantClient) -> None:
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
    def test_what_keeps_metadata_below_a_key_is_deleted_by_their_own_names(
        self, client: QdrantClient, write: Write
    ) -> None:
        fill(client, lambda document: write(replace(document, metadata={**document.metadata, "source.system": "old"})))
        client.set_payload(
            NAME, write(replace(DOCUMENTS[2], metadata={"source.system": "new"})), [node_id(DOCUMENTS[2])]
        )
        store = CareVectorStore(NAME, client)
        others = MetadataFilter(key="source.system", operator=FilterOperator.NE, value="new")
        assert filtered(store, others) == ["d0", "d1", "d3"]
        store.delete_nodes(filters=MetadataFilters(filters=[others]))
        assert [node.ref_doc_id for node in store.get_nodes()] == ["d2"]

    def test_nodes_come_by_the_thousand(self, client: QdrantClient) -> None:
        store = CareVectorStore(NAME, _numbered(client, 10_050))
        assert len(store.get_nodes()) == 10_050
        assert len(store.get_nodes(limit=1_500)) == 1_500

    def test_node_ids_narrow_a_filter(self, client: QdrantClient) -> None:
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
        self, client: QdrantClient, embedding: CareEmbedding, tmp_path: Path, other: BaseNode
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

    def test_nodes_that_somebody_names_restrict_a_query(self, client: QdrantClient, embedding: CareEmbedding) -> None:
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


class TestWriting:
    """What `add` leaves behind."""

    def test_a_new_collection_has_a_named_vector_and_its_contract(
        self, client: QdrantClient, embedding: CareEmbedding
    ) -> None:
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

    def test_vectors_of_another_dimension_create_nothing(self, client: QdrantClient, embedding: CareEmbedding) -> None:
        node = TextNode(id_=str(uuid.uuid4()), text="x", embedding=[1.0, 0.0])
        with pytest.raises(SchemaMismatch, match="2 dimensions"):
            CareVectorStore(NAME, client, embedding=embedding).add([node])
        assert not client.collection_exists(NAME)

    @pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
    def test_a_vector_that_no_search_would_find_is_refused(self, client: QdrantClient, value: float) -> None:
        """A server takes them: zeros over HTTP, numbers that are none over gRPC."""
        nodes = [TextNode(id_=str(uuid.uuid4()), text="x", embedding=[each] * 3) for each in (1.0, value)]
        with pytest.raises(EncodingError, match=f"the vector of node {nodes[1].node_id} has length"):
            CareVectorStore(NAME, client).add(nodes)
        assert not client.collection_exists(NAME)

    @pytest.mark.parametrize("use_async", [False, True])
    def test_the_vectors_of_other_models_stay_and_it_is_said_when_their_text_changes(
        self, client: QdrantClient, embedding: CareEmbedding, use_async: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(client, made.llama_index, unnamed=True)
        client.set_payload(NAME, {"_care": {"vectors": {"other": "hash"}}, "stale": 1}, [node_id(DOCUMENTS[0])])
        before = _stored(client, node_id(DOCUMENTS[0]))
        store = CareVectorStore(NAME, client, embedding=embedding)
        changed = TextNode(id_=node_id(DOCUMENTS[0]), text="新的内容", metadata={"dept": "急诊科"})
        fresh = TextNode(id_=str(uuid.uuid4()), text="全新的")
        for node in (changed, fresh):
            node.embedding = vector(node.text)
        for times_said in (1, 0):
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
        self, client: QdrantClient, embedding: CareEmbedding, write: Write
    ) -> None:
        fill(client, write)
        store = CareVectorStore(NAME, client, embedding=embedding)
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d9")}
        node = TextNode(id_=str(uuid.uuid4()), text="新的", metadata={"dept": "急诊科"}, relationships=source)
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
        self, client: QdrantClient, embedding: CareEmbedding, hash_model: HashModel
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

    def test_an_id_that_qdrant_does_not_take_is_explained(self, client: QdrantClient) -> None:
        with pytest.raises(InputError, match="'doc-1' is no UUID"):
            CareVectorStore(NAME, client).add([TextNode(id_="doc-1", text="x", embedding=[1.0])])

    def test_two_nodes_of_one_id_are_refused_before_one_is_lost(self, client: QdrantClient) -> None:
        node = TextNode(id_=str(uuid.uuid4()), text="x", embedding=[1.0])
        store = CareVectorStore(NAME, client)
        with pytest.raises(InputError, match=f"two different nodes have the id {node.node_id}"):
            store.add([node, node.model_copy(update={"text": "y"})])
        assert not client.collection_exists(NAME)
        assert store.add([node, node.model_copy()]) == [node.node_id] * 2
        assert client.count(NAME).count == 1

    def test_a_default_index_warns_once(
        self, client: QdrantClient, embedding: CareEmbedding, caplog: pytest.LogCaptureFixture
    ) -> None:
        """LlamaIndex embeds ten nodes a call, and writes them in batches; its splitter knows no tokens of ours."""
        documents = [LlamaDocument(text="长" * 300, metadata={"file_name": f"{number}.md"}) for number in range(30)]
        context = StorageContext.from_defaults(vector_store=CareVectorStore(NAME, client, embedding=embedding))
        with caplog.at_level(logging.WARNING):
            VectorStoreIndex.from_documents(documents, context, embed_model=embedding, insert_batch_size=10)
        [said] = [record.getMessage() for record in caplog.records]
        assert "cut at 64 tokens" in said and "CareNodeParser" in said

    def test_metadata_in_the_embedded_text_beside_points_of_care_ingest_is_said_once(
        self, client: QdrantClient, embedding: CareEmbedding, hash_model: HashModel, caplog: pytest.LogCaptureFixture
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


class TestAsync:
    """One client, sync and async."""

    async def test_one_embedded_folder_serves_both(self, tmp_path: Path, embedding: CareEmbedding) -> None:
        client = QdrantClient(path=str(tmp_path), force_disable_check_same_thread=True)
        fill(client)
        store = CareVectorStore(NAME, client, embedding=embedding)
        retriever = VectorStoreIndex.from_vector_store(store, embed_model=embedding).as_retriever(similarity_top_k=1)
        answers = await asyncio.gather(*(retriever.aretrieve(document.text) for document in DOCUMENTS * 5))
        for document, (hit,) in zip(DOCUMENTS * 5, answers, strict=True):
            assert hit.node.ref_doc_id == document.id
            assert retriever.retrieve(document.text)[0].node.ref_doc_id == document.id
        assert len(await store.aget_nodes()) == 4
        await store.adelete("d1")
        await store.adelete_nodes([node_id(DOCUMENTS[0])])
        assert client.count(NAME).count == 2
        await store.aclear()
        assert not client.collection_exists(NAME)
        with pytest.raises(ValueError, match="no collection 'corpus'"):
            store.get_nodes(node_ids=[node_id(DOCUMENTS[0])])
        client.close()


class TestHybrid:
    """Dense and sparse in one answer; the vector of a query is of another text, so that the two can be told apart."""

    def query(self, text: str, mode: VectorStoreQueryMode = VectorStoreQueryMode.HYBRID, **more: Any) -> Any:
        return VectorStoreQuery(
            query_embedding=vector(DOCUMENTS[0].text), query_str=text, mode=mode, similarity_top_k=4, **more
        )

    @pytest.fixture
    def store(self, client: QdrantClient, embedding: CareEmbedding) -> CareVectorStore:
        fill(client, sparse=True)
        return CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)

    async def test_alpha_says_who_counts_and_zero_is_zero(self, store: CareVectorStore) -> None:
        for alpha, best in ((1.0, "d0"), (0.0, "d2")):
            asked = self.query("耳鸣 噪声", alpha=alpha)
            for result in (store.query(asked), await store.aquery(asked)):
                scores = result.similarities or []
                assert (result.nodes or [])[0].ref_doc_id == best
                assert all(0 <= score <= 1 for score in scores)
                assert scores == sorted(scores, reverse=True)

    @pytest.mark.parametrize(("heavy", "best"), [("耳鸣", "d2"), ("阑尾炎", "d3")])
    def test_the_weights_of_the_pair_count_beside_vectors_only(
        self, client: QdrantClient, embedding: CareEmbedding, monkeypatch: pytest.MonkeyPatch, heavy: str, best: str
    ) -> None:
        fill(client, sparse=True)
        terms = np.sort(np.array([bm25.term_id(term) for term in bm25.terms(heavy)], np.uint32))
        weights = TermWeights(terms, np.full(len(terms), 9.0, np.float32))
        monkeypatch.setattr(HashModel, "query_terms", lambda _, text: weights.query_vector(text))
        store = CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)
        found = store.query(self.query("耳鸣 阑尾炎", alpha=0.0))
        assert (found.nodes or [])[0].ref_doc_id == best
        plain = CareVectorStore(NAME, client, enable_hybrid=True, vector_name="care")
        asked = self.query("耳鸣 阑尾炎", VectorStoreQueryMode.SPARSE)
        assert store.query(asked).similarities == plain.query(asked).similarities

    def test_sparse_alone(self, store: CareVectorStore) -> None:
        found = store.query(self.query("阑尾炎", VectorStoreQueryMode.SPARSE))
        assert [node.ref_doc_id for node in found.nodes or ()] == ["d3"]
        assert store.query(self.query("？！", VectorStoreQueryMode.SPARSE)).nodes == []

    def test_a_query_without_terms_is_dense(self, store: CareVectorStore) -> None:
        assert (store.query(self.query("？")).nodes or [])[0].ref_doc_id == "d0"

    def test_it_can_create_and_fill_a_collection(self, client: QdrantClient, embedding: CareEmbedding) -> None:
        store = CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)
        nodes = [TextNode(id_=node_id(document), text=document.text) for document in DOCUMENTS]
        for node in nodes:
            node.embedding = vector(node.text)
        store.add(nodes)
        assert set(Collection(client, NAME).schema.contracts) == {"hash-model", "bm25"}
        reopened = CareVectorStore(NAME, client, embedding=embedding, enable_hybrid=True, check_vectors=False)
        found = reopened.query(self.query("阑尾炎", alpha=0.0))
        assert (found.nodes or [])[0].get_content() == DOCUMENTS[3].text

    def test_another_sparse_encoder_is_fused_by_rank_of_score(self, client: QdrantClient) -> None:
        fill(client, sparse=True)

        def words(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
            from care_qdrant.encoders.terms import bm25

            vectors = [bm25.query_vector(text) for text in texts]
            return [one.indices for one in vectors], [[50 * value for value in one.values] for one in vectors]

        store = CareVectorStore(
            NAME, client, vector_name="care", enable_hybrid=True, sparse_query_fn=words, sparse_doc_fn=words
        )
        for alpha, best in ((1.0, "d0"), (0.0, "d2")):
            result = store.query(self.query("耳鸣 噪声", alpha=alpha))
            assert (result.nodes or [])[0].ref_doc_id == best
            assert max(result.similarities or [2]) <= 1

    def test_functions_that_are_exchanged_later_are_used(self, store: CareVectorStore) -> None:
        asked: list[str] = []

        def nothing(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
            asked.extend(texts)
            return [[] for _ in texts], [[] for _ in texts]

        def second(_: Any, sparse: Any, **__: Any) -> Any:
            return sparse

        store.set_query_functions(hybrid_fusion_fn=second)
        assert [node.ref_doc_id for node in store.query(self.query("阑尾炎", alpha=1.0)).nodes or ()] == ["d3"]
        store.set_query_functions(sparse_doc_fn=nothing, sparse_query_fn=nothing)
        assert (store.query(self.query("阑尾炎")).nodes or [])[0].ref_doc_id == "d0"
        assert asked == ["阑尾炎"]
        with pytest.raises(InputError, match="two sides"):
            store.set_query_functions(sparse_doc_fn=nothing)
        with pytest.raises(InputError, match="other terms"):
            CareVectorStore(NAME, store.client, enable_hybrid=True, sparse_doc_fn=nothing)

    def test_queries_are_hybrid_where_the_collection_has_bm25(
        self, client: QdrantClient, embedding: CareEmbedding
    ) -> None:
        fill(client, sparse=True)
        asked = self.query("阑尾炎", VectorStoreQueryMode.DEFAULT, alpha=0.0)
        store = CareVectorStore(NAME, client, embedding=embedding, check_vectors=False)
        assert (store.query(asked).nodes or [])[0].ref_doc_id == "d3"
        dense = CareVectorStore(NAME, client, embedding=embedding, check_vectors=False, enable_hybrid=False)
        assert (dense.query(asked).nodes or [])[0].ref_doc_id == "d0"
        node = TextNode(id_=node_id(DOCUMENTS[0]), text="肛裂", embedding=vector("肛裂"))
        store.add([node])
        assert (store.query(self.query("肛裂", VectorStoreQueryMode.SPARSE)).nodes or [])[0].get_content() == "肛裂"

    def test_a_hybrid_query_can_be_switched_off(self, client: QdrantClient) -> None:
        fill(client, sparse=True)
        with pytest.raises(ValueError, match="enable_hybrid=True"):
            CareVectorStore(NAME, client, enable_hybrid=False).query(self.query("x"))

    def test_a_hybrid_query_without_bm25_names_the_way_to_it(self, client: QdrantClient) -> None:
        fill(client)
        with pytest.raises(ValueError, match=f"care attach {NAME} --bm25") as refusal:
            CareVectorStore(NAME, client).query(self.query("x"))
        assert ("--url" in str(refusal.value)) is not is_embedded(client)
        assert "--path" not in str(refusal.value), "this embedded database is in memory"

    def test_the_way_to_bm25_names_the_folder_of_the_database(self, tmp_path: Path) -> None:
        with open_client(path=tmp_path / "my data") as client:
            fill(client)
            with pytest.raises(ValueError, match=f"care attach {NAME} --bm25 --path '{tmp_path}/my data'"):
                CareVectorStore(NAME, client).query(self.query("x"))

    def test_another_analyser_is_refused(self, client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(client, sparse=True)
        monkeypatch.setattr("care_qdrant.encoders.terms.bm25.ANALYSER", "another")
        with pytest.raises(FingerprintMismatch, match="cut into terms"):
            CareVectorStore(NAME, client, enable_hybrid=True)


class TestModes:
    """What a query asks for is done, or refused."""

    def test_mmr_is_that_of_llama_index(self, client: QdrantClient) -> None:
        vectors = [[1.0, 0.0], [1.0, 0.01], [0.8, 0.6], [0.0, 1.0]]
        nodes = [
            TextNode(id_=str(uuid.UUID(int=number)), text=f"t{number}", embedding=one)
            for number, one in enumerate(vectors)
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

    @pytest.mark.parametrize("mode", [VectorStoreQueryMode.SVM, VectorStoreQueryMode.TEXT_SEARCH])
    def test_a_mode_that_is_not_answered_is_refused(self, client: QdrantClient, mode: VectorStoreQueryMode) -> None:
        fill(client)
        with pytest.raises(ValueError, match=f"default, sparse, hybrid, mmr, none of mode {mode.value}"):
            CareVectorStore(NAME, client).query(VectorStoreQuery(query_embedding=vector("x"), mode=mode))


class _Contract:
    def __init__(self, contract: VectorContract) -> None:
        self._contract = contract

    def contract(self) -> VectorContract:
        return self._contract


def _numbered(client: QdrantClient, count: int) -> QdrantClient:
    """Create points with numbers for ids."""
    client.create_collection(NAME, {"care": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    points = [models.PointStruct(id=i, vector={"care": [1.0, i]}, payload={"text": f"t{i}"}) for i in range(count)]
    client.upload_points(NAME, points, wait=True)
    return client


def _stored(client: QdrantClient, point_id: str) -> Any:
    return client.retrieve(NAME, [point_id], with_vectors=True)[0]


def test_a_setting_that_is_not_one_is_refused() -> None:
    """The stock store swallows it, and its default stays in force."""
    client = QdrantClient(":memory:")
    with pytest.raises(ValueError, match="vectr_name"):
        CareVectorStore(NAME, client, vectr_name="care")
    store = CareVectorStore(NAME, client, enable_hybrid=True)
    again = CareVectorStore.from_dict(store.to_dict(), client=client)
    assert again.collection_name == NAME and again.enable_hybrid


class _Contract:
    def __init__(self, contract: VectorContract) -> None:
        self._contract = contract

    def contract(self) -> VectorContract:
        return self._contract
