"""What a person is told before anything is done."""

from pathlib import Path

from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.doctor import inspect_collection, plan_attach
from tests.databases import require_added_vectors
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import NAME, contents, fill, point


def test_a_healthy_collection(qdrant: QdrantClient, model: HashModel) -> None:
    require_added_vectors(qdrant)
    fill(qdrant, "sparse", "langchain")
    before = contents(qdrant)
    plan = plan_attach(qdrant, NAME, model)
    assert (plan.tool, plan.text_field, plan.refusals, plan.notices) == ("langchain", "page_content", [], [])
    assert (plan.points_to_encode, plan.new_bytes) == (40, 40 * 32 * 4)
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


def test_the_consequence_for_an_unnamed_vector_is_told_once(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "unnamed", "plain")
    [notice] = plan_attach(qdrant, NAME, model).notices
    assert "config.params.vectors.size" in notice
    attach_vector(qdrant, NAME, model)
    assert plan_attach(qdrant, NAME, model).notices == []


def test_every_refusal_at_once(model: HashModel) -> None:
    with StandIn(version="1.16.0") as server:
        client = QdrantClient(url=server.url, check_compatibility=False)
        fill(client, "named", "plain", count=0)
        rows = [models.PointStruct(id=1, vector={"old": [1.0] * 8}, payload={"_care": "theirs", "url": "x"})]
        client.upsert(NAME, rows, wait=True)
        found, detail = plan_attach(client, NAME, model), inspect_collection(client, NAME)
        client.close()
    assert (detail.server_version, detail.tool, detail.texts) == ("1.16.0", None, [])
    assert detail.evidence is not None and "none of 1 sampled payloads has a text" in detail.evidence
    assert len(found.refusals) == 3
    for refusal, word in zip(found.refusals, ("1.18", "_care", "--text-field"), strict=True):
        assert word in refusal
    assert (found.tool, found.sampled, found.sampled_without_text) == (None, 1, 1)


def test_strict_mode_is_shown(client: QdrantClient) -> None:
    fill(client, "named", "plain")
    client.update_collection(NAME, strict_mode_config=models.StrictModeConfig(enabled=True, upsert_max_batchsize=7))
    found = inspect_collection(client, NAME)
    assert found.strict_mode["upsert_max_batchsize"] == 7


def test_the_four_commands_in_their_order(tmp_path: Path, pair_folder: Path) -> None:
    """As a person runs them, with a real pair, on a folder."""
    import json

    from care_qdrant.cli import attach as attach_cli
    from care_qdrant.cli import detach as detach_cli
    from care_qdrant.cli import status, verify
    from care_qdrant.errors import NotVerified

    client = QdrantClient(path=str(tmp_path))
    fill(client, "unnamed", "llama-index", count=12)
    before = contents(client)
    client.close()
    path, model = ["--path", str(tmp_path)], ["--model", str(pair_folder)]

    seen = CliRunner().invoke(status.command, [NAME, *path], catch_exceptions=False).stdout
    assert "payloads of llama-index: 12 of 12" in seen
    planned = CliRunner().invoke(attach_cli.command, [NAME, *path, *model, "--dry-run"], catch_exceptions=False).stdout
    assert "would add vector 'tiny-pair'" in planned
    assert "note: the collection has an unnamed vector" in planned

    done = CliRunner().invoke(attach_cli.command, [NAME, *path, *model, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["covered"] == 12
    assert "note: the collection has an unnamed vector" in done.stderr

    good = CliRunner().invoke(verify.command, [NAME, *path, *model], catch_exceptions=False)
    assert good.stdout.endswith("OK: 12 points, 1 vector\n")
    client = QdrantClient(path=str(tmp_path))
    client.delete_vectors(NAME, ["tiny-pair"], [1])
    client.close()
    bad = CliRunner().invoke(verify.command, [NAME, *path, *model, "--json"])
    assert isinstance(bad.exception, NotVerified)
    assert json.loads(bad.stdout)["covered"] == 11

    sparse = [NAME, *path, "--bm25"]
    CliRunner().invoke(attach_cli.command, sparse, catch_exceptions=False)
    assert CliRunner().invoke(verify.command, [NAME, *path, "--vector-name", "bm25"]).exit_code == 0
    refused = CliRunner().invoke(attach_cli.command, [*sparse, "--via", "copy"])
    assert refused.exit_code == 2 and "leave out --via copy" in refused.output
    unsure = CliRunner().invoke(detach_cli.command, [NAME, *path])
    assert isinstance(unsure.exception, InputError)
    assert "bm25, tiny-pair; give --vector-name, or --all" in str(unsure.exception)
    assert CliRunner().invoke(detach_cli.command, [NAME, *path, "--all", "--vector-name", "bm25"]).exit_code == 2
    gone = CliRunner().invoke(detach_cli.command, [NAME, *path, "--all", "--json"], catch_exceptions=False)
    assert [report["vector_name"] for report in json.loads(gone.stdout)] == ["bm25", "tiny-pair"]
    client = QdrantClient(path=str(tmp_path))
    assert contents(client) == before
    client.close()


def test_what_attach_would_refuse_ends_with_its_exit_code(pair_folder: Path, tmp_path: Path) -> None:
    from care_qdrant.cli import attach as attach_cli

    with open_client(path=tmp_path / "db") as client:
        client.create_collection(NAME, {"tiny-pair": models.VectorParams(size=3, distance=models.Distance.COSINE)})
        client.upsert(NAME, [models.PointStruct(id=1, vector={"tiny-pair": [1.0, 0, 0]}, payload={"text": "一"})])
    arguments = [NAME, "--path", str(tmp_path / "db"), "--model", str(pair_folder)]
    refused = CliRunner().invoke(attach_cli.command, [*arguments, "--dry-run"])
    assert "would be refused" in refused.stdout
    assert refused.exit_code == InputError.exit_code
