"""An encoder that was learned from a collection, once for all tests that only read it."""

import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from qdrant_client import QdrantClient

from care_qdrant.qdrant.collection import Collection
from tests.trainer.learn.collections import WordModel, word_texts, write_langchain

SETTINGS = LearnSettings(vocabulary=200, batch=64, epochs=20, learning_rate=2e-2, seed=3)
TEXTS = word_texts(600)


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """One collection, its learned folder and the report. Read only."""
    client = QdrantClient(":memory:")
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    folder = tmp_path_factory.mktemp("learned") / "articles-queries"
    report = learn(client, "articles", folder, settings=SETTINGS)
    return client, folder, report


@pytest.fixture
def copied(learned):  # type: ignore[no-untyped-def]
    """A collection of its own with the contract of the learned one, and the folder of its encoder."""
    client = QdrantClient(":memory:")
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    Collection(client, "articles").write_learned("", Collection(learned[0], "articles").schema.learned[""])
    return client, learned[1]
