"""What the LlamaIndex tests share."""

import pytest

from care_qdrant.model.pair import CareModel
from tests.tiny import HashModel


@pytest.fixture
def hash_model(monkeypatch: pytest.MonkeyPatch) -> HashModel:
    """A pair that needs no weights; every model that is loaded during the test is this one."""
    model = HashModel()
    monkeypatch.setattr(CareModel, "load", lambda *args, **kwargs: model)
    return model
