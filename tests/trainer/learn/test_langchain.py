"""A collection that LangChain wrote with its own package, learned from and searched on a server and in a folder."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_qdrant import QdrantVectorStore

from care_qdrant.model.pair import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.retriever import Retriever
from tests.trainer.learn.collections import WordModel, word_texts

TEXTS = word_texts(600)
QUESTIONS = [text.split("。")[1] for text in TEXTS[:50]]
SETTINGS = LearnSettings(vocabulary=200, batch=64, epochs=20, learning_rate=2e-2, seed=3)


class Teacher(Embeddings):
    """The made-up model as LangChain's class; the library never sees it."""

    def __init__(self) -> None:
        self.model = WordModel()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.model.encode(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.fixture(params=["folder", pytest.param("server", marks=pytest.mark.server)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Arguments that open the same Qdrant in LangChain's package and in this one."""
    if request.param == "folder":
        return {"path": tmp_path / "qdrant"}
    return {"url": request.getfixturevalue("real_url")}


@contextmanager
def written(where: dict[str, Any]) -> Iterator[str]:
    """Name of a collection that LangChain's store created and filled; a server's is deleted afterwards."""
    name = f"care-test-{uuid.uuid4().hex[:8]}"
    documents = [Document(text, metadata={"source": f"{number}.txt"}) for number, text in enumerate(TEXTS)]
    store = QdrantVectorStore.from_documents(
        documents, Teacher(), collection_name=name, check_compatibility=False, **where
    )
    store.client.close()
    yield name
    with open_client(**where) as client:
        client.delete_collection(name)


@pytest.mark.timeout(400)
def test_langchains_collection_is_learned_from_and_searched_without_its_model(
    where: dict[str, Any], tmp_path: Path
) -> None:
    with written(where) as name, open_client(**where) as client:
        collection = Collection(client, name)
        assert not collection.schema.contracts and not collection.schema.learned
        report = learn(client, name, tmp_path / "queries", settings=SETTINGS)
        assert (report.registered, report.vector_name, report.text_field) == (True, "", "page_content")
        hits = Retriever(client, name, CareModel.load(tmp_path / "queries")).search(QUESTIONS)
        assert _share(hits) > 0.7


def _share(hits: Sequence[Sequence[Any]]) -> float:
    """Fraction of the questions whose own document is among the hits."""
    return float(np.mean([TEXTS[number] in {hit.text for hit in found} for number, found in enumerate(hits)]))
