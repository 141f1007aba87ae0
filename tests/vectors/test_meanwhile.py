"""Changes by others to a vector while an attach writes it: the run ends with an error, or the vector is its own."""

from collections.abc import Callable

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import CareError, FingerprintMismatch, InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifySettings
from tests.tiny import HashModel
from tests.vectors.collections import NAME, contents, fill

OTHER = HashModel(name="other", salt="other")


def detach(client: QdrantClient) -> None:
    detach_vector(client, NAME, "v")


def replace_by_another_model(client: QdrantClient) -> None:
    detach(client)
    attach_vector(client, NAME, OTHER, vector_name="v")


def make_again_for_another_model(client: QdrantClient) -> None:
    client.delete_collection(NAME)
    fill(client, "named", "plain")
    attach_vector(client, NAME, OTHER, vector_name="v")


@pytest.mark.parametrize("event", [detach, replace_by_another_model, make_again_for_another_model])
@pytest.mark.parametrize("at", [1, 20, 39])
def test_no_run_ends_well_whose_vector_is_no_longer_its_own(
    qdrant: QdrantClient, model: HashModel, event: Callable[[QdrantClient], None], at: int
) -> None:
    fill(qdrant, "named", "plain")
    events = [event]

    def on_progress(done: int, _total: int) -> None:
        if events and done >= at:
            events.pop()(qdrant)

    settings = AttachSettings(batch_tokens=400)
    with pytest.raises(CareError):
        attach_vector(qdrant, NAME, model, vector_name="v", settings=settings, on_progress=on_progress)
    assert not events
    if event is detach:
        assert "v" not in Collection(qdrant, NAME).schema.dense
        return
    with pytest.raises(FingerprintMismatch):
        attach_vector(qdrant, NAME, model, vector_name="v")
    attach_vector(qdrant, NAME, OTHER, vector_name="v")
    quiet = VerifySettings(least_known=0)
    assert verify_collection(qdrant, NAME, OTHER, vector_name="v", settings=quiet).problems == []


@pytest.mark.parametrize("name", [".", "..", "a/b", "", "x" * 201])
def test_a_name_that_no_server_takes_is_refused_before_anything_is_written(qdrant: QdrantClient, name: str) -> None:
    fill(qdrant, "named", "plain")
    before = contents(qdrant), Collection(qdrant, NAME).schema.metadata
    with pytest.raises(InputError, match="name"):
        attach_vector(qdrant, NAME, HashModel(), vector_name=name)
    assert (contents(qdrant), Collection(qdrant, NAME).schema.metadata) == before


@pytest.mark.parametrize("name", ["_care", "vectors", "a.b", "a[0]", "é 漢", "it's", "-", "care%20x", "text"])
def test_any_other_name_is_attached_and_detached(qdrant: QdrantClient, model: HashModel, name: str) -> None:
    fill(qdrant, "named", "plain")
    before = contents(qdrant), Collection(qdrant, NAME).schema.metadata
    assert attach_vector(qdrant, NAME, model, vector_name=name).covered == 40
    assert attach_vector(qdrant, NAME, model, vector_name=name).unchanged == 40
    where = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key="_care"))])
    assert qdrant.count(NAME, where).count == 40
    detach_vector(qdrant, NAME, name)
    assert (contents(qdrant), Collection(qdrant, NAME).schema.metadata) == before
