"""The plan that `care attach --dry-run` prints before anything is written."""

from pathlib import Path

from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from care_qdrant.vectors.status import inspect_collection
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import NAME, contents, fill, point


def test_a_healthy_collection(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "sparse", "langchain")
    before = contents(qdrant)
    plan = plan_attach(qdrant, NAME, model)
    assert (plan.tool, plan.text_field, plan.refusals, plan.notices) == ("langchain", "page_content", [], [])
    assert (plan.points_to_encode, plan.new_bytes) == (40, 40 * 32 * 4)
    assert plan.new_tokens == sum(min(64, count) for count in model.document_tokenizer.count_tokens(medical_texts(40)))
    found = inspect_collection(qdrant, NAME)
    assert (found.tool, found.text_field) == ("langchain", "page_content")
    assert {vector.name: vector.points for vector in found.summary.vectors} == {"old": 40, "terms": 40}
    assert found.texts and set(found.texts) <= {text[:60] for text in medical_texts(40)}
    assert contents(qdrant) == before
    assert model.document_encoder_reads == 0


def test_coverage_of_a_vector_that_is_there(attached: QdrantClient, model: HashModel) -> None:
    attached.upsert(NAME, [point("named", "plain", 41, "新的")], wait=True)
    [care] = [vector for vector in inspect_collection(attached, NAME).summary.vectors if vector.name == "care"]
    assert (care.made_by, care.fingerprint, care.points) == ("care", model.fingerprint, 40)
    assert plan_attach(attached, NAME, model).points_to_encode == 1
    # BM25 needs no model, and what its vectors take depends on the texts.
    bm25 = plan_attach(attached, NAME, None)
    assert (bm25.vector_name, bm25.points_to_encode, bm25.new_bytes, bm25.refusals) == ("bm25", 41, None, [])
    assert bm25.new_tokens is None


def test_the_consequence_for_an_unnamed_vector_is_told_once(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "unnamed", "plain")
    [notice] = plan_attach(qdrant, NAME, model).notices
    assert "config.params.vectors.size" in notice
    attach_vector(qdrant, NAME, model)
    assert plan_attach(qdrant, NAME, model).notices == []


def test_every_refusal_at_once(model: HashModel) -> None:
    with StandIn() as server:
        client = QdrantClient(url=server.url, check_compatibility=False)
        fill(client, "named", "plain", count=0)
        rows = [models.PointStruct(id=1, vector={"old": [1.0] * 8}, payload={"_care": "theirs", "url": "x"})]
        client.upsert(NAME, rows, wait=True)
        found, detail = plan_attach(client, NAME, model), inspect_collection(client, NAME)
        client.close()
    assert (detail.server_version, detail.tool, detail.texts) == ("1.19.0", None, [])
    assert detail.evidence is not None and "none of 1 sampled payload has a text" in detail.evidence
    assert len(found.refusals) == 2
    for refusal, word in zip(found.refusals, ("_care", "--text-field"), strict=True):
        assert word in refusal
    assert (found.tool, found.sampled, found.sampled_without_text) == (None, 1, 1)


def test_what_attach_would_refuse_ends_with_its_exit_code(pair_folder: Path, tmp_path: Path) -> None:
    from care_qdrant.cli import attach as attach_cli

    with open_client(path=tmp_path / "db") as client:
        client.create_collection(NAME, {"tiny-pair": models.VectorParams(size=3, distance=models.Distance.COSINE)})
        client.upsert(NAME, [models.PointStruct(id=1, vector={"tiny-pair": [1.0, 0, 0]}, payload={"text": "一"})])
    arguments = [NAME, "--path", str(tmp_path / "db"), "--model", str(pair_folder)]
    refused = CliRunner().invoke(attach_cli.command, [*arguments, "--dry-run"])
    assert "would be refused" in refused.stdout
    assert refused.exit_code == InputError.exit_code
