"""Whoever wrote a collection: nothing of theirs changes, whatever happens to the attach."""

from collections.abc import Sequence

import pytest
from qdrant_client import QdrantClient

from care_qdrant.existing.attach import AttachSettings, attach
from care_qdrant.existing.detach import detach
from care_qdrant.existing.verify import verify_collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Vectors
from tests.existing.collections import NAME, SCHEMAS, TOOLS, contents, fill, old_answers
from tests.tiny import HashEncoder, HashModel, medical_texts

SMALL_BATCHES = AttachSettings(batch_tokens=200)


class Killed(BaseException):
    """Ends a run without any of its clean-up being asked for."""


class MortalModel(HashModel):
    """Encodes a few batches and then dies."""

    def __init__(self, batches: int) -> None:
        super().__init__(name="care")
        self._encoder = _MortalEncoder(batches)


class _MortalEncoder(HashEncoder):
    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        if not self.left:
            raise Killed
        self.left -= 1
        return super().encode(texts, prompt=prompt)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_attach_kill_resume_detach(any_qdrant: QdrantClient, schema: str, tool: str) -> None:
    fill(any_qdrant, schema, tool)
    before, answers = contents(any_qdrant), old_answers(any_qdrant, schema)

    with pytest.raises(Killed):
        attach(any_qdrant, NAME, MortalModel(batches=3), settings=SMALL_BATCHES)
    assert contents(any_qdrant, without="care") == before
    assert old_answers(any_qdrant, schema) == answers
    stored = sum("_care" in payload for payload, _ in contents(any_qdrant).values())

    model = HashModel(name="care")
    report = attach(any_qdrant, NAME, model, settings=SMALL_BATCHES)
    assert (report.unchanged, report.encoded, report.covered, report.points) == (stored, 40 - stored, 40, 40)
    assert len(model.document_encoder.encoded) == report.encoded
    assert report.tool == ("plain" if tool == "nested" else tool)
    assert contents(any_qdrant, without="care") == before
    assert old_answers(any_qdrant, schema) == answers

    text = medical_texts(40)[17]
    assert Retriever(any_qdrant, NAME, model).search([text], top_k=1)[0][0].text == text
    assert verify_collection(any_qdrant, NAME, model).problems == []

    detach(any_qdrant, NAME)
    assert contents(any_qdrant) == before
    assert old_answers(any_qdrant, schema) == answers
    assert any_qdrant.get_collection(NAME).config.metadata == {"owner": "team"}
