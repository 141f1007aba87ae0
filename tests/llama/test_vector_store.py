"""`CareVectorStore`: the right vector of the right model, whoever wrote the collection."""

import copy
import pickle
import re
import traceback

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from llama_index.vector_stores.care.settings import StoreSettings
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import AsyncQdrantClient, QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.errors import FingerprintMismatch, InputError, SchemaMismatch
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
    with pytest.raises(
        InputError, match=r"has no vector 'nope'.*'care'.*add it, with the same --model.*--vector-name nope$"
    ):
        CareVectorStore(NAME, client, vector_name="nope")


@pytest.mark.parametrize(
    "name", sorted({*StoreSettings.model_fields, "misspelt"} - {"enable_hybrid", "fastembed_sparse_model"})
)
def test_a_setting_that_cannot_be_read_is_named_without_its_value(client: QdrantClient, name: str) -> None:
    """The value may be a key, and pydantic's own text is for programmers."""
    fill(client)
    given: dict[str, object] = {"collection_name": NAME, "client": client, name: {"inner": "a-secret-key"}}
    try:
        CareVectorStore(**given)  # type: ignore[arg-type]
    except (InputError, TypeError) as error:
        said = "".join(traceback.format_exception(error))
        assert f"{name}" in said
        assert not re.search("a-secret-key|validation error|pydantic.dev", said)
    else:
        assert name in ("client_kwargs", "quantization_config")


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
    with pytest.raises(
        InputError, match=r"'a' \(by another tool\), 'b' \(by another tool\); choose one with --vector-name"
    ):
        CareVectorStore(NAME, client)


async def test_an_embedded_async_client_alone_is_refused(embedding: CareEmbedding) -> None:
    aclient = AsyncQdrantClient(":memory:")
    with pytest.raises(InputError, match="give client=QdrantClient"):
        CareVectorStore(NAME, aclient=aclient, embedding=embedding)
    await aclient.close()


def test_a_setting_that_is_not_one_is_refused() -> None:
    """The stock store swallows it, and its default stays in force."""
    client = QdrantClient(":memory:")
    with pytest.raises(InputError, match=r"no setting vectr_name=.* vector_name, "):
        CareVectorStore(NAME, client, vectr_name="care")
    store = CareVectorStore(NAME, client, enable_hybrid=True)
    again = CareVectorStore.from_dict(store.to_dict(), client=client)
    assert again.collection_name == NAME and again.enable_hybrid


class _Contract:
    def __init__(self, contract: VectorContract) -> None:
        self._contract = contract

    def contract(self) -> VectorContract:
        return self._contract


def test_a_copy_shares_the_client_and_a_pickle_is_refused(client: QdrantClient, embedding: CareEmbedding) -> None:
    store = CareVectorStore("copies", client, embedding=embedding)
    store.add([TextNode(text="发烧", embedding=embedding.get_text_embedding("发烧"))])
    for copied in (copy.copy(store), copy.deepcopy(store), store.model_copy(deep=True)):
        assert copied.client is client
        assert len(copied.get_nodes()) == 1
    with pytest.raises(TypeError, match="open the store in the other process"):
        pickle.dumps(store)
