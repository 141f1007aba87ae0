"""A job over a collection adds the vector that attach adds, whatever others do to the points meanwhile."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.load import load_points, verify
from care_qdrant.bulk.points import plan_points
from care_qdrant.cli import care
from care_qdrant.errors import ContractError, InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.tiny import HashModel, Killed, medical_texts

MODEL = HashModel(max_tokens=40)


def fill(client: QdrantClient, name: str, count: int = 50) -> None:
    """Make a collection as another tool does: numbers as ids, texts under a name of its own, no text in some."""
    client.create_collection(name, vectors_config=models.VectorParams(size=4, distance=models.Distance.COSINE))
    payloads: list[dict[str, Any]] = [{"body": text, "n": n} for n, text in enumerate(medical_texts(count))]
    payloads[3] = {"n": 3}
    vectors = [[1.0, n, 0.0, 0.0] for n in range(count)]
    points = [models.PointStruct(id=n, vector=vectors[n], payload=payloads[n]) for n in range(count)]
    client.upsert(name, points)


def plan(client: QdrantClient, job: Path, name: str = "docs", model: HashModel = MODEL, **changes: Any) -> Manifest:
    draft = Manifest("hash", model.name, model.fingerprint, model.dim, "Cosine", model.name, unit_rows=20)
    return plan_points(Collection(client, name).resolve(), Job(str(job)), draft, model.document_tokenizer, **changes)


def encode(job: Path) -> int:
    """Encode the units that have no part; return their number."""
    opened = Job(str(job))
    manifest, done = opened.manifest(), opened.receipts()
    todo = [unit for unit in manifest.units if unit.name not in done]
    for unit in todo:
        encode_unit(opened, manifest, unit, MODEL, 1_000)
    return len(todo)


def contents(client: QdrantClient, name: str) -> dict[Any, Any]:
    records, _ = client.scroll(name, limit=1_000, with_vectors=True)
    return {record.id: (record.payload, record.vector) for record in records}


def test_a_job_writes_what_attach_writes(client: QdrantClient, tmp_path: Path) -> None:
    for name in ("docs", "same"):
        fill(client, name)
    manifest = plan(client, tmp_path)
    assert [unit.documents for unit in manifest.units] == [20, 20, 9]
    encode(tmp_path)

    def killed(_done: int, _all: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        load_points(Job(str(tmp_path)), Collection(client, "docs"), on_progress=killed)
    first, second = (load_points(Job(str(tmp_path)), Collection(client, "docs"), part=(number, 2)) for number in (1, 2))
    assert (first.encoded + second.encoded, second.covered, second.points) == (49, 49, 50)
    attach_vector(client, "same", MODEL)
    bulk, direct = contents(client, "docs"), contents(client, "same")
    assert bulk.keys() == direct.keys()
    for point, (payload, vectors) in direct.items():
        assert bulk[point][0] == payload
        one, other = (each if isinstance(each, dict) else {"": each} for each in (bulk[point][1], vectors))
        assert one.keys() == other.keys()
        for name, vector in other.items():
            assert one[name] == pytest.approx(vector, abs=1e-6)
    assert load_points(Job(str(tmp_path)), Collection(client, "docs")).encoded == 0
    assert attach_vector(client, "docs", MODEL).encoded == 0
    assert verify(Job(str(tmp_path)), Collection(client, "docs")).problems == []
    assert verify_collection(client, "docs", MODEL).problems == []


def test_what_others_write_meanwhile_is_left_alone_and_planned_next(client: QdrantClient, tmp_path: Path) -> None:
    fill(client, "docs")
    names = [unit.name for unit in plan(client, tmp_path).units]
    encode(tmp_path)
    client.set_payload("docs", {"body": "改过的文字，与前面不同。"}, points=[5])
    client.delete("docs", [6])
    client.upsert("docs", [models.PointStruct(id=100, vector=[1.0, 0, 0, 0], payload={"body": "新来的文字。"})])
    report = load_points(Job(str(tmp_path)), Collection(client, "docs"))
    assert (report.encoded, report.covered, report.points) == (47, 47, 50)
    checked = verify(Job(str(tmp_path)), Collection(client, "docs"))
    assert (checked.right, checked.changed, checked.problems) == (47, 2, [])
    again = plan(client, tmp_path)
    assert [unit.name for unit in again.units[:3]] == names
    assert again.units[3].documents == 2
    assert encode(tmp_path) == 1
    assert load_points(Job(str(tmp_path)), Collection(client, "docs")).encoded == 2
    assert verify_collection(client, "docs", MODEL).problems == []


def test_planning_twice_before_a_load_adds_nothing(client: QdrantClient, tmp_path: Path) -> None:
    fill(client, "docs")
    assert plan(client, tmp_path).units == plan(client, tmp_path).units


def test_a_lost_vector_is_found_by_the_verification(client: QdrantClient, tmp_path: Path) -> None:
    fill(client, "docs")
    plan(client, tmp_path)
    encode(tmp_path)
    load_points(Job(str(tmp_path)), Collection(client, "docs"))
    client.delete_payload("docs", [f'_care.vectors."{MODEL.name}"'], points=[9])
    report = verify(Job(str(tmp_path)), Collection(client, "docs"))
    assert report.outdated == 1
    assert "care bulk load" in report.problems[0]


def test_what_cannot_be_planned_is_refused(client: QdrantClient, tmp_path: Path) -> None:
    fill(client, "docs")
    plan(client, tmp_path / "job")
    with pytest.raises(ContractError, match="plan into another folder"):
        plan(client, tmp_path / "job", model=HashModel(salt="other", max_tokens=40))
    fill(client, "other")
    with pytest.raises(InputError, match="another collection"):
        plan(client, tmp_path / "job", name="other")
    attach_vector(client, "docs", MODEL)
    with pytest.raises(InputError, match="every point with a text has vector"):
        plan(client, tmp_path / "new")
    next((tmp_path / "job" / "rows").iterdir()).unlink()
    with pytest.raises(InputError, match="is not there any more"):
        encode(tmp_path / "job")


def test_the_command_attaches_with_many_machines(tmp_path: Path) -> None:
    with open_client(path=tmp_path / "qdrant") as client:
        fill(client, "docs", 12)

    def run(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(care, ["bulk", *arguments])
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    place, job = ("--path", f"{tmp_path}/qdrant"), f"{tmp_path}/job"
    planned = run("plan", job, "--collection", "docs", "--unit-rows", "5", *place)
    assert (planned["units"], planned["documents"]) == (3, 11)
    assert run("encode", job)["encoded"] == 3
    assert run("load", job, "--collection", "docs", *place)["covered"] == 11
    assert run("verify", job, "--collection", "docs", *place)["right"] == 11
    refused = CliRunner().invoke(care, ["bulk", "plan", job])
    assert refused.exit_code == 2
    assert "or JOB alone, and --collection" in refused.output
