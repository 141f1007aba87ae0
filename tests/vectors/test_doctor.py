"""What a person is told before anything is done."""

from pathlib import Path

from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.doctor import diagnose
from tests.databases import require_added_vectors
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import NAME, contents, fill, point


def test_a_healthy_collection(qdrant: QdrantClient, model: HashModel) -> None:
    require_added_vectors(qdrant)
    fill(qdrant, "sparse", "langchain")
    before = contents(qdrant)
    found = diagnose(qdrant, NAME, model)
    assert (found.tool, found.text_field, found.refusals, found.notices) == ("langchain", "page_content", [], [])
    assert {vector.name: vector.points for vector in found.summary.vectors} == {"old": 40, "terms": 40}
    assert (found.points_to_encode, found.new_bytes) == (40, 40 * 32 * 4)
    assert set(found.texts) <= {text[:60] for text in medical_texts(40)}
    assert contents(qdrant) == before
    assert model.document_encoder_reads == 0


def test_coverage_of_a_vector_that_is_there(attached: QdrantClient, model: HashModel) -> None:
    attached.upsert(NAME, [point("named", "plain", 41, "新的")], wait=True)
    found = diagnose(attached, NAME, model)
    [care] = [vector for vector in found.summary.vectors if vector.name == "care"]
    assert (care.made_by, care.fingerprint, care.points) == ("care", model.fingerprint, 40)
    assert found.points_to_encode == 1


def test_the_consequence_for_an_unnamed_vector_is_told_once(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "unnamed", "plain")
    [notice] = diagnose(qdrant, NAME, model).notices
    assert "config.params.vectors.size" in notice
    attach_vector(qdrant, NAME, model)
    assert diagnose(qdrant, NAME, model).notices == []


def test_every_refusal_at_once(model: HashModel) -> None:
    with StandIn(version="1.16.0") as server:
        client = QdrantClient(url=server.url, check_compatibility=False)
        fill(client, "named", "plain", count=0)
        rows = [models.PointStruct(id=1, vector={"old": [1.0] * 8}, payload={"_care": "theirs", "url": "x"})]
        client.upsert(NAME, rows, wait=True)
        found = diagnose(client, NAME, model)
        client.close()
    assert found.server_version == "1.16.0"
    assert len(found.refusals) == 3
    for refusal, word in zip(found.refusals, ("1.18", "_care", "--text-field"), strict=True):
        assert word in refusal
    assert (found.tool, found.sampled, found.sampled_without_text) == (None, 1, 1)


def test_strict_mode_is_shown(client: QdrantClient, model: HashModel) -> None:
    fill(client, "named", "plain")
    client.update_collection(NAME, strict_mode_config=models.StrictModeConfig(enabled=True, upsert_max_batchsize=7))
    found = diagnose(client, NAME, model)
    assert found.strict_mode["upsert_max_batchsize"] == 7


def test_the_four_commands_in_their_order(tmp_path: Path, pair_folder: Path) -> None:
    """As a person runs them, with a real pair, on a folder."""
    import json

    from care_qdrant.cli import attach as attach_cli
    from care_qdrant.cli import detach as detach_cli
    from care_qdrant.cli import doctor, verify
    from care_qdrant.errors import NotVerified

    client = QdrantClient(path=str(tmp_path))
    fill(client, "unnamed", "llama-index", count=12)
    before = contents(client)
    client.close()
    path, model = ["--path", str(tmp_path)], ["--model", str(pair_folder)]

    seen = CliRunner().invoke(doctor.command, [NAME, *path, *model], catch_exceptions=False).stdout
    assert "payloads of llama-index: 12 of 12" in seen
    assert "would give vector 'tiny-pair'" in seen
    assert "note: the collection has an unnamed vector" in seen

    done = CliRunner().invoke(attach_cli.command, [NAME, *path, *model], catch_exceptions=False)
    assert json.loads(done.stdout)["covered"] == 12
    assert "note: the collection has an unnamed vector" in done.stderr

    good = CliRunner().invoke(verify.command, [NAME, *path, *model], catch_exceptions=False)
    assert json.loads(good.stdout)["problems"] == []
    client = QdrantClient(path=str(tmp_path))
    client.delete_vectors(NAME, ["tiny-pair"], [1])
    client.close()
    bad = CliRunner().invoke(verify.command, [NAME, *path, *model])
    assert isinstance(bad.exception, NotVerified)
    assert json.loads(bad.stdout)["covered"] == 11

    sparse = [NAME, *path, "--sparse", "bm25"]
    CliRunner().invoke(attach_cli.command, sparse, catch_exceptions=False)
    assert CliRunner().invoke(verify.command, [NAME, *path, "--vector-name", "bm25"]).exit_code == 0
    refused = CliRunner().invoke(attach_cli.command, [*sparse, "--via", "copy"])
    assert refused.exit_code == 2 and "leave out --via copy" in refused.output
    unsure = CliRunner().invoke(detach_cli.command, [NAME, *path])
    assert isinstance(unsure.exception, InputError)
    assert "bm25, tiny-pair; give --vector-name, or --all" in str(unsure.exception)
    assert CliRunner().invoke(detach_cli.command, [NAME, *path, "--all", "--vector-name", "bm25"]).exit_code == 2
    gone = CliRunner().invoke(detach_cli.command, [NAME, *path, "--all"], catch_exceptions=False)
    assert [json.loads(line)["vector_name"] for line in gone.stdout.splitlines()] == ["bm25", "tiny-pair"]
    client = QdrantClient(path=str(tmp_path))
    assert contents(client) == before
    client.close()


def test_what_attach_would_refuse_ends_with_its_exit_code(pair_folder: Path, tmp_path: Path) -> None:
    from care_qdrant.cli import doctor

    with open_client(path=tmp_path / "db") as client:
        client.create_collection(NAME, {"tiny-pair": models.VectorParams(size=3, distance=models.Distance.COSINE)})
        client.upsert(NAME, [models.PointStruct(id=1, vector={"tiny-pair": [1.0, 0, 0]}, payload={"text": "一"})])
    arguments = [NAME, "--path", str(tmp_path / "db"), "--model", str(pair_folder)]
    refused = CliRunner().invoke(doctor.command, arguments)
    assert "would refuse" in refused.stdout
    assert refused.exit_code == InputError.exit_code
