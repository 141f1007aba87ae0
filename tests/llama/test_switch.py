"""Readers of LlamaIndex that know both models follow `care switch`, and never search a vector of another model."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import ImageNode, MetadataMode, NodeWithScore, TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.embeddings.care import CareEmbedding
from llama_index.postprocessor.care import CareRerank
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant.errors import FingerprintMismatch, InputError, SchemaMismatch
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.switch import switch
from care_qdrant.switch.switch import switch_collection, undo_switch
from tests.switch import models
from tests.switch.models import NAME, good

OLD, NEW = good("old"), good("new", seed=1)
NARROW = models.TableModel("narrow", models.table(2, 48))
MODELS = {model.name: model for model in (OLD, NEW, NARROW, good("third", seed=3))}
COUNT = 200


@pytest.fixture
def rows(qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of a collection whose readers may be switched from the old model to the new one, and back."""
    monkeypatch.setattr(CareModel, "load", lambda source, **_: MODELS[source])
    monkeypatch.setattr(switch, "_SETTLE_SECONDS", 0.0)
    rows = models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, NEW, OLD)
    undo_switch(qdrant, NAME)
    return rows


def embedding(name: str) -> CareEmbedding:
    return CareEmbedding(model=name)


def store(qdrant: QdrantClient, first: str, *others: str, **settings: Any) -> CareVectorStore:
    known = [embedding(name) for name in others]
    return CareVectorStore(NAME, qdrant, embedding=embedding(first), other_models=known, **settings)


def is_by(model: Any, text: str, rows: list[str], scored: list[tuple[int, float]]) -> bool:
    """Return whether hits are the best ones of a query by a model, with its scores, by brute force."""
    scores = models.brute_force(model, [text], rows)[0]
    got = [score for _, score in scored]
    best = np.sort(scores)[::-1][: len(scored)]
    return np.allclose(got, best, atol=1e-4) and np.allclose(got, scores[[place for place, _ in scored]], atol=1e-4)


def places(hits: list[NodeWithScore]) -> list[tuple[int, float]]:
    return [(int(hit.node_id), hit.score or 0.0) for hit in hits]


@pytest.mark.parametrize("indexed", ["old", "new"])
@pytest.mark.parametrize("use_async", [False, True])
def test_an_index_follows_without_a_failed_or_mixed_query(
    qdrant: QdrantClient, rows: list[str], indexed: str, use_async: bool
) -> None:
    """Whichever of the two embeddings the index has, and also where a query was embedded before the switch."""
    readers = {
        (first, other): VectorStoreIndex.from_vector_store(
            store(qdrant, first, other, check_seconds=0.02), embed_model=embedding(indexed)
        ).as_retriever(similarity_top_k=5)
        for first, other in (("old", "new"), ("new", "old"))
    }
    faults: list[object] = []
    seen: set[str] = set()
    stop = threading.Event()

    def read(retriever: Any) -> None:
        for number in iter(lambda: next(counted), None):
            if stop.is_set():
                return
            text = rows[number % 20].partition("。")[0]
            try:
                hits = asyncio.run(retriever.aretrieve(text)) if use_async else retriever.retrieve(text)
            except Exception as error:
                faults.append(error)
                return
            by = [model.name for model in (OLD, NEW) if is_by(model, text, rows, places(hits))]
            seen.update(by)
            if len(by) != 1:
                faults.append((text, places(hits)))

    counted: Iterator[int] = iter(range(1_000_000))
    threads = [threading.Thread(target=read, args=(retriever,)) for retriever in readers.values()]
    for thread in threads:
        thread.start()
    for _ in range(6):
        undo_switch(qdrant, NAME)
        time.sleep(0.15)
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == [] and seen == {"old", "new"}


@pytest.mark.parametrize("made_by", ["old", "new"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_query_embedded_before_a_switch_is_searched_by_the_model_after_it(
    qdrant: QdrantClient, rows: list[str], made_by: str, is_back: bool
) -> None:
    reader = store(qdrant, "old", "new", check_seconds=0)
    text = rows[7].partition("。")[0]
    vector = embedding(made_by).get_query_embedding(text)
    for _ in range(1 + is_back):
        undo_switch(qdrant, NAME)
    answer = reader.query(VectorStoreQuery(query_embedding=vector, query_str=text, similarity_top_k=5))
    scored = [(int(key), score) for key, score in zip(answer.ids or (), answer.similarities or (), strict=True)]
    assert is_by(OLD if is_back else NEW, text, rows, scored)
    assert reader.dense_vector_name == ("old" if is_back else "new")


def test_a_reranker_scores_by_the_active_model(qdrant: QdrantClient, rows: list[str]) -> None:
    both = store(qdrant, "old", "new", check_seconds=0)
    rerank = CareRerank(embedding=embedding("old"), vector_store=both, top_n=5)
    nodes = [NodeWithScore(node=TextNode(id_=str(number), text=text)) for number, text in enumerate(rows)]
    text = rows[7].partition("。")[0]
    for model in (OLD, NEW, OLD):
        assert is_by(model, text, rows, places(rerank.postprocess_nodes(nodes, query_str=text)))
        undo_switch(qdrant, NAME)
    with pytest.raises(InputError, match="query_str="):
        both.score(OLD.encode_query([text])[0].tolist(), ["7"])


@pytest.mark.parametrize("made_by", ["old", "new"])
def test_a_node_is_written_into_the_active_vector(qdrant: QdrantClient, rows: list[str], made_by: str) -> None:
    both = store(qdrant, "old", "new", check_seconds=0)
    index = VectorStoreIndex.from_vector_store(both, embed_model=embedding(made_by))
    for number, model in enumerate((OLD, NEW)):
        key, text = str(UUID(int=number)), f"词00{number} 词399 词398"
        index.insert_nodes([TextNode(id_=key, text=text)])
        [record] = qdrant.retrieve(NAME, [key], with_vectors=True)
        [(name, vector)] = vectors_of(record).items()
        assert name == model.name and np.allclose(vector, model.encode_document([text])[0], atol=1e-5)
        undo_switch(qdrant, NAME)


def test_nodes_are_made_again_of_the_texts_that_their_vectors_were_made_of(
    qdrant: QdrantClient, rows: list[str]
) -> None:
    """With all metadata, with the title, or of the text alone, also in one batch."""
    nodes = [
        TextNode(id_=str(UUID(int=n)), text="词001 词002", metadata={"title": "词100", "k": "词200"}) for n in range(6)
    ]
    whole = nodes[0].get_content(MetadataMode.EMBED)
    texts = [whole, "词001 词002", "词100 词001 词002", "词001 词002", whole, "词001 词002"]
    for node, row in zip(nodes, NEW.encode_document(texts).tolist(), strict=True):
        node.embedding = row
    store(qdrant, "old", "new", check_seconds=0).add(nodes)
    for node, row in zip(nodes, OLD.encode_document(texts), strict=True):
        [record] = qdrant.retrieve(NAME, [node.node_id], with_vectors=True)
        assert np.allclose(vectors_of(record)["old"], row, atol=1e-5)


def test_one_batch_may_have_vectors_of_all_models_of_the_store(qdrant: QdrantClient, rows: list[str]) -> None:
    """As where some nodes keep a vector that was made before; one of another model is refused, wherever it is."""
    both, made_by = store(qdrant, "old", "new", check_seconds=0), [OLD, OLD, NEW, OLD, OLD, OLD]
    texts = [f"词00{number} 词399" for number in range(6)]

    def batch(*made_by: Any) -> list[TextNode]:
        made = [model.encode_document([text])[0].tolist() for model, text in zip(made_by, texts, strict=True)]
        return [TextNode(id_=str(UUID(int=n)), text=texts[n], embedding=row) for n, row in enumerate(made)]

    for _ in range(10):
        with pytest.raises(FingerprintMismatch):
            both.add(batch(OLD, OLD, MODELS["third"], OLD, NEW, OLD))
    assert qdrant.count(NAME).count == COUNT
    for model in (OLD, NEW):
        nodes = batch(*made_by)
        both.add(nodes)
        for node, row in zip(nodes, model.encode_document(texts), strict=True):
            [record] = qdrant.retrieve(NAME, [node.node_id], with_vectors=True)
            assert np.allclose(vectors_of(record)[model.name], row, atol=1e-5)
        undo_switch(qdrant, NAME)


@pytest.mark.parametrize("made_by", ["old", "new", "third"])
@pytest.mark.parametrize("blank", [TextNode(text=" "), ImageNode(image="aGVsbG8=")])
def test_a_node_without_a_text_is_refused_where_several_models_may_have_made_it(
    qdrant: QdrantClient, rows: list[str], made_by: str, blank: TextNode
) -> None:
    both = store(qdrant, "old", "new", check_seconds=0)
    row = MODELS[made_by].encode_document(["词001"])[0].tolist()
    node = blank.model_copy(update={"embedding": row})
    own = TextNode(text="词001", embedding=OLD.encode_document(["词001"])[0].tolist())
    for nodes in ([node], [own, node, own]):
        with pytest.raises(InputError, match="without a text"):
            both.add(nodes)
    assert qdrant.count(NAME).count == COUNT


def test_a_vector_of_no_model_of_the_store_is_refused(qdrant: QdrantClient, rows: list[str]) -> None:
    both = store(qdrant, "old", "new")
    for name, error in (("third", FingerprintMismatch), ("narrow", SchemaMismatch)):
        index = VectorStoreIndex.from_vector_store(both, embed_model=embedding(name))
        with pytest.raises(error):
            index.as_retriever().retrieve("词001")
        with pytest.raises(error):
            index.insert_nodes([TextNode(text="词001")])
    with pytest.raises(InputError, match="query_str="):
        both.query(VectorStoreQuery(query_embedding=OLD.encode_query(["词001"])[0].tolist()))
    assert qdrant.count(NAME).count == COUNT


def test_what_cannot_be_encoded_again_is_refused(qdrant: QdrantClient, rows: list[str]) -> None:
    with pytest.raises(InputError, match="check_vectors=False"):
        store(qdrant, "old", "new", check_vectors=False)
    queries = CareEmbedding(model="new", documents=False)
    undo_switch(qdrant, NAME)
    both = CareVectorStore(NAME, qdrant, embedding=embedding("old"), other_models=[queries])
    with pytest.raises(InputError, match="documents=False"):
        VectorStoreIndex.from_vector_store(both, embed_model=embedding("old")).insert_nodes([TextNode(text="词001")])


@pytest.mark.parametrize("made_by", ["old", "new"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_cleared_collection_is_created_again_by_the_active_model(
    qdrant: QdrantClient, rows: list[str], made_by: str, is_back: bool
) -> None:
    for _ in range(1 + is_back):
        undo_switch(qdrant, NAME)
    both, model = store(qdrant, "old", "new"), OLD if is_back else NEW
    both.clear()
    node = TextNode(text="词001", embedding=MODELS[made_by].encode_document(["词001"])[0].tolist())
    both.add([node])
    [record] = qdrant.retrieve(NAME, [node.node_id], with_vectors=True)
    [(name, vector)] = vectors_of(record).items()
    assert name == model.name and np.allclose(vector, model.encode_document(["词001"])[0], atol=1e-5)
    assert CareVectorStore(NAME, qdrant, embedding=embedding(model.name)).dense_vector_name == model.name


def test_a_fingerprint_is_not_left_unchecked(qdrant: QdrantClient, rows: list[str]) -> None:
    """Because of other models, or of a model that has another one."""
    third = MODELS["third"].fingerprint
    for settings in ({}, {"fingerprint": third}):
        with pytest.raises(InputError, match="needs embedding="):
            CareVectorStore(NAME, qdrant, other_models=[embedding("new")], **settings)  # type: ignore[arg-type]
    with pytest.raises(FingerprintMismatch, match="not fingerprint="):
        store(qdrant, "old", "new", fingerprint=third)
    assert store(qdrant, "old", "new", fingerprint=OLD.fingerprint).contract == OLD.contract()


def test_a_reader_of_the_old_model_says_once_that_it_stays(
    qdrant: QdrantClient, rows: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    undo_switch(qdrant, NAME)
    old = embedding("old")
    reader = VectorStoreIndex.from_vector_store(CareVectorStore(NAME, qdrant, embedding=old), embed_model=old)
    for _ in range(3):
        assert is_by(OLD, rows[7], rows, places(reader.as_retriever(similarity_top_k=3).retrieve(rows[7])))
    assert sum("was switched to vector 'new'" in record.getMessage() for record in caplog.records) == 1
