"""Whoever wrote a collection: nothing of theirs changes, whatever happens to the attach."""

import pytest
from qdrant_client import QdrantClient

from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.tiny import HashModel, Killed, MortalModel, medical_texts
from tests.vectors.collections import NAME, SCHEMAS, TOOLS, contents, fill, old_answers

SMALL_BATCHES = AttachSettings(batch_tokens=200)


CASES = [(schema, tool) for schema in SCHEMAS for tool in TOOLS if (schema, tool) != ("unnamed", "haystack")]
"""Haystack could not open the one that is left out again (tests/vectors/test_peers.py)."""


@pytest.mark.parametrize(("schema", "tool"), CASES)
def test_attach_kill_resume_detach(qdrant: QdrantClient, schema: str, tool: str) -> None:
    fill(qdrant, schema, tool)
    before, answers = contents(qdrant), old_answers(qdrant, schema)

    with pytest.raises(Killed):
        attach_vector(qdrant, NAME, MortalModel(batches=3), settings=SMALL_BATCHES)
    assert contents(qdrant, without="care") == before
    assert old_answers(qdrant, schema) == answers
    stored = sum("_care" in payload for payload, _ in contents(qdrant).values())

    model = HashModel(name="care")
    report = attach_vector(qdrant, NAME, model, settings=SMALL_BATCHES)
    assert (report.unchanged, report.encoded, report.covered, report.points) == (stored, 40 - stored, 40, 40)
    assert (report.vector_name, report.fingerprint) == ("care", model.fingerprint)
    assert len(model.document_encoder.encoded) == report.encoded
    assert report.tool == ("plain" if tool == "nested" else tool)
    assert contents(qdrant, without="care") == before
    assert old_answers(qdrant, schema) == answers

    text = medical_texts(40)[17]
    assert Retriever(qdrant, NAME, model).search([text], top_k=1)[0][0].text == text
    assert verify_collection(qdrant, NAME, model).problems == []

    detach_vector(qdrant, NAME)
    assert contents(qdrant) == before
    assert old_answers(qdrant, schema) == answers
    assert qdrant.get_collection(NAME).config.metadata == {"owner": "team"}
