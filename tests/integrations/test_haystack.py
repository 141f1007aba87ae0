"""The components in a Haystack pipeline, and the way to YAML and back."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from care_qdrant import CareModel
from care_qdrant.errors import FingerprintMismatch, UnusableText

pytest.importorskip("haystack")
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore

from care_qdrant.integrations.haystack import CareDocumentEmbedder, CareTextEmbedder
from tests.tiny import static_tower

DOCUMENTS = [
    Document(content="二甲双胍会引起恶心和腹泻", meta={"title": "二甲双胍的副作用", "dept": "药剂科"}),
    Document(content="急性阑尾炎要手术吗"),
]


def test_a_pipeline_writes_and_finds() -> None:
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    indexing = Pipeline()
    indexing.add_component("embedder", CareDocumentEmbedder())
    indexing.add_component("writer", DocumentWriter(store))
    indexing.connect("embedder.documents", "writer.documents")
    indexing.run({"embedder": {"documents": DOCUMENTS}})
    querying = Pipeline()
    querying.add_component("embedder", CareTextEmbedder())
    querying.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=1))
    querying.connect("embedder.embedding", "retriever.query_embedding")
    querying = Pipeline.loads(querying.dumps(), allowed_modules=["care_qdrant.integrations.haystack"])
    querying.get_component("retriever").document_store = store
    [found] = querying.run({"embedder": {"text": "吃二甲双胍拉肚子"}})["retriever"]["documents"]
    assert found.content == DOCUMENTS[0].content


def test_the_retriever_of_haystack_leaves_out_low_scores_and_groups_by_metadata() -> None:
    stores = pytest.importorskip("haystack_integrations.document_stores.qdrant")
    retrievers = pytest.importorskip("haystack_integrations.components.retrievers.qdrant")
    store = stores.QdrantDocumentStore(":memory:", embedding_dim=384, similarity="cosine")
    texts = ["二甲双胍会引起恶心和腹泻", "二甲双胍要随餐吃", "急性阑尾炎要手术吗"]
    rows = [Document(content=text, meta={"dept": "外科" if "阑尾" in text else "药剂科"}) for text in texts]
    store.write_documents(CareDocumentEmbedder().run(documents=rows)["documents"])
    embedding = CareTextEmbedder().run(text="吃二甲双胍拉肚子")["embedding"]

    def found(**options: object) -> list[Document]:
        return retrievers.QdrantEmbeddingRetriever(store, **options).run(query_embedding=embedding)["documents"]

    first, second, third = found()
    assert [document.id for document in found(score_threshold=(second.score + third.score) / 2)] == [
        first.id,
        second.id,
    ]
    grouped = found(group_by="meta.dept", group_size=1)
    assert {document.id for document in grouped} == {first.id, third.id}


def test_title_and_text_are_embedded_and_nothing_else() -> None:
    embedded = CareDocumentEmbedder().run(documents=DOCUMENTS)["documents"]
    expected = CareModel.load().encode_document(["二甲双胍的副作用 二甲双胍会引起恶心和腹泻", "急性阑尾炎要手术吗"])
    for document, row in zip(embedded, expected.tolist(), strict=True):
        assert document.embedding == pytest.approx(row, abs=1e-6)
    assert DOCUMENTS[0].embedding is None
    assert CareDocumentEmbedder().run(documents=[]) == {"documents": []}


@pytest.mark.parametrize("kind", [CareTextEmbedder, CareDocumentEmbedder])
def test_a_saved_component_knows_its_model(kind: type[CareTextEmbedder] | type[CareDocumentEmbedder]) -> None:
    saved = kind().to_dict()
    assert kind.from_dict(saved).to_dict() == saved
    saved["init_parameters"]["fingerprint"] = "0" * 64
    with pytest.raises(FingerprintMismatch, match="saved with 000000000000"):
        kind.from_dict(saved).warm_up()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda component: pickle.loads(pickle.dumps(component))])
def test_a_copy_embeds_alike(copied: Callable[[CareTextEmbedder], CareTextEmbedder]) -> None:
    embedder = CareTextEmbedder()
    vector = embedder.run(text="耳鸣")
    assert copied(embedder).run(text="耳鸣") == vector
    assert copied(embedder).fingerprint == embedder.care_model.fingerprint


@pytest.mark.parametrize("content", ["", "\f", "公式：\ud835"])
def test_a_document_that_no_vector_can_be_made_of_is_named(content: str, tmp_path: Path) -> None:
    documents = [*DOCUMENTS, Document(id="page-3", content=content)]
    with pytest.raises(UnusableText, match=r"^document 'page-3' "):
        CareDocumentEmbedder(static_tower(tmp_path / "table")).run(documents=documents)


@pytest.mark.parametrize("title", [None, 3, ["甲", "乙"]])
def test_a_title_that_is_no_text_is_not_embedded(title: object) -> None:
    bare, given = (Document(content="头痛多休息", meta=meta) for meta in ({}, {"title": title}))
    first, second = CareDocumentEmbedder().run(documents=[bare, given])["documents"]
    assert first.embedding == pytest.approx(second.embedding, abs=1e-6)
