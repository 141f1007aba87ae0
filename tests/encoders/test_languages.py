"""A model is not let into texts of a language that it does not read without a word."""

import json
import logging
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.encoders.languages import require_language
from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Document
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from tests.tiny import medical_texts

ENGLISH = [f"Patients with disorder number {number} should drink water and rest in bed." for number in range(20)]
CHINESE = medical_texts(20)


@pytest.fixture
def model(pair_folder: Path) -> CareModel:
    """A pair whose tokenizer knows Chinese characters and no English words."""
    return CareModel.load(pair_folder)


@pytest.mark.parametrize(("english", "outcome"), [(0, "read"), (1, "read"), (6, "said"), (12, "refused")])
def test_what_is_not_read_is_said_and_most_of_it_refused(
    model: CareModel, english: int, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ENGLISH[:english] + CHINESE[english:]
    with caplog.at_level(logging.WARNING):
        if outcome == "refused":
            with pytest.raises(InputError, match=r"does not read 60% of 20 sampled texts, such as 'Patients with"):
                require_language(model.name, model.document_tokenizer, texts)
        else:
            require_language(model.name, model.document_tokenizer, texts)
    assert bool(caplog.records) == (outcome == "said")


def test_a_new_collection_and_an_attach_are_refused_before_anything_is_written(model: CareModel) -> None:
    client = QdrantClient(":memory:")
    documents = [Document(str(number), text) for number, text in enumerate(ENGLISH)]
    with pytest.raises(InputError, match="--any-language encodes them all the same"):
        ingest(documents, model, client, "articles")
    assert not client.collection_exists("articles")
    assert ingest(documents, model, client, "articles", settings=IngestSettings(any_language=True)).points == 20

    client.create_collection("theirs", {"old": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    points = [
        models.PointStruct(id=number, vector={"old": [1.0, number]}, payload={"text": text})
        for number, text in enumerate(ENGLISH)
    ]
    client.upsert("theirs", points)
    before = json.dumps(client.get_collection("theirs").model_dump(mode="json"))
    assert "does not read 100%" in plan_attach(client, "theirs", model).refusals[0]
    with pytest.raises(InputError, match="does not read 100%"):
        attach_vector(client, "theirs", model)
    assert json.dumps(client.get_collection("theirs").model_dump(mode="json")) == before
    assert attach_vector(client, "theirs", model, settings=AttachSettings(any_language=True)).covered == 20
    assert attach_vector(client, "theirs", model).unchanged == 20  # it was asked for once
    client.close()
