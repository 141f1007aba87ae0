"""The model inside the package: it loads by its name, and reads the texts that the service warms it up with."""

import pytest

from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.hub import BUILT_IN, find_folder


def test_the_included_model_loads_by_its_name() -> None:
    model = CareModel.load(BUILT_IN)
    assert model.light_documents
    assert not all(map(model.unread, model.probe_texts))
    assert model.encode_query(model.probe_texts).shape == (len(model.probe_texts), model.dim)
    with pytest.raises(InputError, match="has no revision 'main'"):
        find_folder(BUILT_IN, revision="main")
