"""The models inside the package: each loads by its name, and reads the texts that the service warms it up with."""

import pytest

from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.hub import find_folder
from care_qdrant.model.included import INCLUDED


@pytest.mark.parametrize("name", INCLUDED)
def test_an_included_model_loads_by_its_name(name: str) -> None:
    model = CareModel.load(name)
    assert model.folder == INCLUDED[name].folder
    assert model.light_documents is INCLUDED[name].light_documents
    assert not all(map(model.unread, model.probe_texts))
    assert model.encode_query(model.probe_texts).shape == (len(model.probe_texts), model.dim)
    with pytest.raises(InputError, match="has no revision 'main'"):
        find_folder(name, revision="main")
