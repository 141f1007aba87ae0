"""Fixtures that the LlamaIndex tests share."""

from weakref import WeakValueDictionary

import pytest
from llama_index.embeddings.care import CareEmbedding, shared_model

from care_qdrant.model.care_model import CareModel
from tests.tiny import HashModel


@pytest.fixture
def hash_model(monkeypatch: pytest.MonkeyPatch) -> HashModel:
    """A pair that needs no weights; every model that is loaded during the test is this one."""
    model = HashModel()
    monkeypatch.setattr(CareModel, "load", lambda *args, **kwargs: model)
    for opened in ("_models", "_shared"):  # one of an earlier test may still be referred to by what was not collected
        monkeypatch.setattr(shared_model, opened, WeakValueDictionary())
    return model


@pytest.fixture
def embedding(hash_model: HashModel) -> CareEmbedding:
    return CareEmbedding(model="m")
