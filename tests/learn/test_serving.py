"""A learned query encoder searches a collection that another tool wrote, until its vectors are replaced."""

from pathlib import Path

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.errors import FingerprintMismatch
from care_qdrant.learn.learn import learn
from care_qdrant.learn.settings import LearnSettings
from care_qdrant.model import CareModel
from care_qdrant.search.retriever import Retriever
from tests.learn.collections import WordModel, word_texts, write_langchain

SETTINGS = LearnSettings(vocabulary=200, batch=64, epochs=20, learning_rate=2e-2)
TEXTS = word_texts(600)
QUESTIONS = [text[:11] for text in TEXTS[:50]]


@pytest.fixture
def learned(tmp_path: Path) -> tuple[QdrantClient, Path]:
    client = QdrantClient(":memory:")
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    learn(client, "articles", tmp_path / "queries", settings=SETTINGS)
    return client, tmp_path / "queries"


@pytest.mark.timeout(400)
def test_the_retriever_and_llama_index_find_the_same(learned: tuple[QdrantClient, Path]) -> None:
    client, folder = learned
    hits = Retriever(client, "articles", CareModel.load(folder)).search(QUESTIONS)
    assert np.mean([TEXTS[n] in {hit.text for hit in found} for n, found in enumerate(hits)]) > 0.7
    store = CareVectorStore(collection_name="articles", client=client)
    index = VectorStoreIndex.from_vector_store(store, embed_model=CareEmbedding(model=str(folder)))
    nodes = index.as_retriever(similarity_top_k=10).retrieve(QUESTIONS[0])
    assert [node.text for node in nodes] == [hit.text for hit in hits[0]]
    other = WordModel(seed=9).encode(TEXTS)
    client.update_vectors("articles", [models.PointVectors(id=n, vector=v.tolist()) for n, v in enumerate(other)])
    with pytest.raises(FingerprintMismatch, match="another model may have made them"):
        Retriever(client, "articles", CareModel.load(folder)).search(QUESTIONS)
