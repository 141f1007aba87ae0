"""A job over a collection adds the vector that attach adds, whatever others do to the points meanwhile."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.load import load_points, verify
from care_qdrant.bulk.points import plan_points
from care_qdrant.bulk.units import read_unit
from care_qdrant.cli import care
from care_qdrant.errors import ContractError, InputError, UnusableText
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.readable import SLICES_SINCE
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from care_qdrant.vectors.verify import verify_collection
from tests.databases import require_server
from tests.standin import StandIn
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
    place = Collection(client, name).resolve()
    return plan_points(place, Job(str(job)), draft, model.document_tokenizer, **changes)


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


def test_a_text_that_the_encoder_cannot_read_stops_neither_a_plan_nor_an_attach(
    client: QdrantClient, tmp_path: Path
) -> None:
    class Choosy(HashModel):
        """Its tokenizer fails on one text, as one without an unknown token does, and makes no token of another."""

        def __init__(self) -> None:
            super().__init__(max_tokens=40)
            count = self._encoder.count_tokens

            def count_or_fail(texts: Sequence[str]) -> list[int]:
                if failing := {place: "fails" for place, text in enumerate(texts) if "（7）" in text}:
                    raise UnusableText(failing)
                return count([text if "（9）" not in text else "" for text in texts])

            self._encoder.count_tokens = count_or_fail  # type: ignore[method-assign]

    fill(client, "docs")
    planned = plan(client, tmp_path / "job", model=Choosy())
    assert sum(unit.documents for unit in planned.units) == 49 and planned.tokens > 0
    assert plan_attach(client, "docs", Choosy()).new_tokens
    report = attach_vector(client, "docs", Choosy())
    assert (report.unreadable, report.covered, report.without_text) == ([7, 9], 47, 3)
    client.set_payload("docs", {"body": "改过（7）"}, points=[8])
    report = attach_vector(client, "docs", Choosy())  # nor does it keep a vector of an earlier text
    assert (report.unreadable, report.removed, report.covered, report.without_text) == ([7, 8, 9], 1, 46, 4)


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
    next((tmp_path / "job" / "care-rows").iterdir()).unlink()
    with pytest.raises(InputError, match="no longer exists"):
        encode(tmp_path / "job")


def test_the_command_attaches_with_many_machines(tmp_path: Path) -> None:
    with open_client(path=tmp_path / "qdrant") as client:
        fill(client, "docs", 12)

    def run(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(care, ["bulk", *arguments, "--json"])
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


# A collection that is read by slices

POINTS = 400
"""Enough for five slices of four units of twenty points."""


@pytest.fixture
def sliced(server: StandIn) -> Iterator[StandIn]:
    """A server with a collection that is planned by slices, and pages smaller than a slice."""
    with open_client(url=server.url) as client:
        require_server(client, SLICES_SINCE)
        fill(client, "docs", POINTS)
        strict = models.StrictModeConfig(enabled=True, max_query_limit=50)
        client.update_collection("docs", strict_mode_config=strict)
    yield server


def plan_at(url: str, job: Path, **changes: Any) -> Manifest:
    with open_client(url=url) as client:
        return plan(client, job, **changes)


def planned_texts(job: Path) -> list[tuple[str, str]]:
    opened = Job(str(job))
    rows = (row for unit in opened.manifest().units for row in read_unit(opened, unit))
    return sorted((row.id, row.text) for row in rows if isinstance(row, Document))


def expected_texts() -> list[tuple[str, str]]:
    return sorted((str(n), text) for n, text in enumerate(medical_texts(POINTS)) if n != 3)


def test_slices_hold_every_point_once(sliced: StandIn, tmp_path: Path) -> None:
    read: list[int] = []
    manifest = plan_at(sliced.url, tmp_path, on_progress=read.append)
    assert planned_texts(tmp_path) == expected_texts()
    assert max(read) == POINTS
    assert read == sorted(read)
    whole = plan_at(sliced.url, tmp_path / "whole")
    assert [unit.name for unit in manifest.units] == [unit.name for unit in whole.units]
    assert len(manifest.units) > POINTS // 20, "it was not read by slices"


def killed_after(points: int) -> Callable[[int], None]:
    def note(read: int) -> None:
        if read > points:
            raise Killed

    return note


def test_an_interrupted_plan_reads_what_is_left(sliced: StandIn, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        plan_at(sliced.url, tmp_path, on_progress=killed_after(POINTS // 2))
    with open_client(url=sliced.url) as client:
        client.upsert("docs", [models.PointStruct(id=5, vector=[1.0, 0, 0, 0], payload={"body": "改过。"})])
    read: list[int] = []
    plan_at(sliced.url, tmp_path, on_progress=read.append)
    assert 0 < max(read) < POINTS * 3 // 4
    found = dict(planned_texts(tmp_path))
    assert found.keys() == dict(expected_texts()).keys()
    # The next plan takes what was written behind the first one's back, and looks at all points for it.
    read.clear()
    plan_at(sliced.url, tmp_path, on_progress=read.append)
    assert max(read) == POINTS
    assert ("5", "改过。") in planned_texts(tmp_path)


def test_notes_of_a_plan_that_has_ended_count_no_more(sliced: StandIn, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        plan_at(sliced.url, tmp_path, on_progress=killed_after(POINTS // 2))
    notes = {path: path.read_bytes() for path in tmp_path.glob("plan-*/*.json")}
    assert notes
    plan_at(sliced.url, tmp_path)
    assert list(tmp_path.glob("plan-*")) == []
    for path, content in notes.items():  # as if it had been killed before it removed them
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    with open_client(url=sliced.url) as client:
        points = [models.PointStruct(id=n, vector=[1.0, 0, 0, 0], payload={"body": f"新{n}"}) for n in range(900, 950)]
        client.upsert("docs", points)
    plan_at(sliced.url, tmp_path)
    assert planned_texts(tmp_path) == sorted([*expected_texts(), *((str(n), f"新{n}") for n in range(900, 950))])


def test_an_interrupted_plan_of_another_model_is_not_continued(sliced: StandIn, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        plan_at(sliced.url, tmp_path, on_progress=killed_after(POINTS // 2))
    with pytest.raises(ContractError, match="plan into another folder"):
        plan_at(sliced.url, tmp_path, model=HashModel(salt="other", max_tokens=40))


def test_a_server_without_slices_is_read_at_once(tmp_path: Path) -> None:
    with StandIn(version="1.18.3") as old:
        with open_client(url=old.url) as client:
            fill(client, "docs", POINTS)
        manifest = plan_at(old.url, tmp_path)
        assert [unit.documents for unit in manifest.units] == [20] * 19 + [19]
        assert planned_texts(tmp_path) == expected_texts()


@pytest.mark.timeout(120)
def test_a_plan_that_was_killed_is_finished_by_the_next(sliced: StandIn, tmp_path: Path) -> None:
    # The server falls silent when two slices are listed, or a few more.
    sliced.faults.add("timeout", times=1_000, skip=6, path="/points/scroll$", seconds=60)
    arguments = ["bulk", "plan", str(tmp_path / "job"), "--collection", "docs", "--url", sliced.url]
    command = [sys.executable, "-c", "from care_qdrant.cli import main; main()", *arguments, "--unit-rows", "20"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job, until = Job(str(tmp_path / "job")), time.monotonic() + 60
    while not list(tmp_path.glob("job/plan-*/*.json")) and time.monotonic() < until:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert job.read("manifest.json") is None
    done = len(list(tmp_path.glob("job/plan-*/*.json")))
    sliced.faults.clear()
    before = sliced.count("POST", "/points/scroll")
    result = CliRunner().invoke(care, [*arguments, "--unit-rows", "20", "--json"])
    assert result.exit_code == 0, result.output
    assert planned_texts(tmp_path / "job") == expected_texts()
    assert sliced.count("POST", "/points/scroll") - before <= (5 - done) * 3
