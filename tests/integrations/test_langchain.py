"""LangChain's own conformance tests over the built-in pair, and its stock Qdrant store over a collection of ours."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient

from care_qdrant import CareModel, Document, ingest
from care_qdrant.errors import FingerprintMismatch, InputError, UnusableText

pytest.importorskip("langchain_core")
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from care_qdrant.integrations.langchain import CareEmbeddings
from tests.tiny import document_tower, static_tower


class _BuiltIn:
    """The built-in model, as the conformance tests ask of their subclasses."""

    @property
    def embeddings_class(self) -> type[CareEmbeddings]:
        return CareEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "built-in"}


class TestCareEmbeddingsUnit(_BuiltIn, EmbeddingsUnitTests):
    pass


class TestCareEmbeddings(_BuiltIn, EmbeddingsIntegrationTests):
    pass


def test_each_side_has_its_own_encoder() -> None:
    embeddings, model = CareEmbeddings(), CareModel.load()
    text = "耳鸣吃什么药"
    assert embeddings.embed_query(text) == pytest.approx(model.encode_query([text])[0].tolist(), abs=1e-6)
    assert embeddings.embed_documents([text])[0] == pytest.approx(model.encode_document([text])[0].tolist(), abs=1e-6)
    assert not np.allclose(embeddings.embed_query(text), embeddings.embed_documents([text])[0])
    assert embeddings.embed_documents([]) == []


@pytest.mark.parametrize("text", ["多喝水。\n", "  多喝水。", "\n\n多喝水。 \n"])
def test_a_document_has_the_vector_of_ingestion_whatever_blanks_are_around_it(tmp_path: Path, text: str) -> None:
    """A page of a PDF ends with a line feed, which is a token to a language model."""
    folder = document_tower(tmp_path / "model")
    expected = CareModel.load(folder, device="cpu").encode_document(["多喝水。"])[0].tolist()
    embeddings = CareEmbeddings(folder, device="cpu")
    assert embeddings.embed_documents([text])[0] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputError, match="expected; write"):
        embeddings.embed_documents(text)  # type: ignore[arg-type]


def test_langchains_store_finds_what_care_ingest_wrote(tmp_path: Path) -> None:
    langchain_qdrant = pytest.importorskip("langchain_qdrant")
    model = CareModel.load()
    documents = [Document("a", "二甲双胍会引起恶心和腹泻"), Document("b", "急性阑尾炎要手术吗")]
    client = QdrantClient(":memory:")
    ingest(documents, model, client, "corpus")
    store = langchain_qdrant.QdrantVectorStore(
        client, "corpus", embedding=CareEmbeddings(), vector_name=model.name, content_payload_key="text"
    )
    [found] = store.similarity_search("吃二甲双胍拉肚子", k=1)
    assert found.page_content == documents[0].text
    scored = store.similarity_search_with_score("吃二甲双胍拉肚子", k=2)
    assert [document.page_content for document, _ in scored] == [document.text for document in documents]
    between = sum(score for _, score in scored) / 2
    assert store.similarity_search_with_score("吃二甲双胍拉肚子", k=2, score_threshold=between) == scored[:1]
    client.close()


@pytest.mark.parametrize("text", ["", "\f", "\u200b", "公式：\ud835"])
@pytest.mark.parametrize("is_included", [True, False])
def test_a_text_that_no_vector_can_be_made_of_is_named(text: str, is_included: bool, tmp_path: Path) -> None:
    """A transformer with a prompt would give a blank text the vector of the prompt."""
    embeddings = CareEmbeddings() if is_included else CareEmbeddings(static_tower(tmp_path / "table"))
    with pytest.raises(UnusableText, match=r"^text 1 "):
        embeddings.embed_documents(["耳鸣吃什么药", text])
    with pytest.raises(UnusableText, match=r"^text 0 "):
        embeddings.embed_query(text)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda embeddings: pickle.loads(pickle.dumps(embeddings))])
def test_a_copy_embeds_alike_and_refuses_another_model(copied: Callable[[CareEmbeddings], CareEmbeddings]) -> None:
    """Worker processes get the embeddings as a pickle."""
    embeddings = CareEmbeddings()
    assert copied(embeddings).embed_query("耳鸣") == embeddings.embed_query("耳鸣")
    embeddings.model.fingerprint = "0" * 64
    with pytest.raises(FingerprintMismatch, match="saved with 000000000000"):
        copied(embeddings)
