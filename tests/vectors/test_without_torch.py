"""An installation that cannot encode documents says so before anything is written."""

from pathlib import Path

import pytest
from qdrant_client import QdrantClient

from care_qdrant import errors
from care_qdrant.errors import MissingExtra
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from tests.vectors.collections import NAME, contents, fill


@pytest.fixture
def pair(pair_folder: Path, monkeypatch: pytest.MonkeyPatch) -> CareModel:
    """A pair in an installation without torch."""
    found = errors.find_spec
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name == "torch" else found(name))
    return CareModel.load(pair_folder)


def test_attach(client: QdrantClient, pair: CareModel) -> None:
    fill(client, "named", "plain")
    before, config = contents(client), client.get_collection(NAME).config
    with pytest.raises(MissingExtra, match=r"document encoder needs torch.*'\.\[ingest\]"):
        attach_vector(client, NAME, pair)
    assert contents(client) == before
    assert client.get_collection(NAME).config == config
    assert [each.name for each in client.get_collections().collections] == [NAME]


def test_ingest(client: QdrantClient, pair: CareModel) -> None:
    with pytest.raises(MissingExtra, match="document encoder needs torch"):
        ingest([Document("d1", "高血压")], pair, client, "corpus")
    assert not client.collection_exists("corpus")


def test_the_plan_of_an_attach_says_it(client: QdrantClient, pair: CareModel) -> None:
    fill(client, "named", "plain")
    refusals = plan_attach(client, NAME, pair).refusals
    assert any("document encoder needs torch" in refusal for refusal in refusals)
