"""A process that follows a pipeline, and is ended by a signal."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.console.watching import passes
from care_qdrant.errors import (
    FingerprintMismatch,
    FolderLocked,
    NoCollection,
    Rejected,
    TooFewDocuments,
    Unreachable,
)
from care_qdrant.qdrant.collection import Collection
from care_qdrant.vectors.attach import AttachReport, AttachSettings, attach_vector
from tests.forks import FORKS
from tests.standin import StandIn
from tests.tiny import BusyEncoder, HashModel
from tests.vectors.collections import NAME, contents, fill, point


def _attach_bm25(client: QdrantClient) -> AttachReport:
    return attach_vector(client, NAME, None)


def _attach_model(client: QdrantClient) -> AttachReport:
    return attach_vector(client, NAME, HashModel(name="care"))


def _reports(process: "subprocess.Popen[str]") -> Iterator[dict[str, object]]:
    """Return what each pass prints, as it prints it."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def _start(server: StandIn, pair_folder: Path) -> "subprocess.Popen[str]":
    command = [str(FORKS.commands / "care")]
    where = ["attach", NAME, "--url", server.url, "--model", str(pair_folder), "--watch", "0.05", "--json"]
    return subprocess.Popen([*command, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_pipeline_adds_is_picked_up_until_a_signal_ends_it(
    server: StandIn, client: QdrantClient, pair_folder: Path, number: signal.Signals
) -> None:
    fill(client, "named", "plain", count=10)
    with _start(server, pair_folder) as process:
        reports = _reports(process)
        assert next(reports)["covered"] == 10
        writer = threading.Thread(target=_write, args=(server.url,))
        writer.start()
        covered = next(each["covered"] for each in reports if each["covered"] == 30)
        writer.join()
        server.faults.add("500", times=5, path="/points/scroll$")
        assert next(reports)["covered"] == covered
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert {"tiny-pair" in vectors for _, vectors in contents(client).values()} == {True}


@pytest.mark.parametrize("attach", [_attach_model, _attach_bm25])
def test_an_attach_to_an_emptied_collection_has_nothing_to_do(
    qdrant: QdrantClient, attach: Callable[[QdrantClient], AttachReport]
) -> None:
    fill(qdrant, "named", "plain", count=6)
    first, schema = attach(qdrant), qdrant.get_collection(NAME).config
    qdrant.delete(NAME, models.Filter(must=[]), wait=True)
    emptied = attach(qdrant)
    assert (emptied.points, emptied.covered, emptied.encoded, emptied.text_field) == (0, 0, 0, "text")
    assert qdrant.get_collection(NAME).config == schema
    qdrant.upsert(NAME, [point("named", "plain", number, f"又来了第{number}段") for number in range(3)], wait=True)
    again = attach(qdrant)
    assert (again.vector_name, again.fingerprint, again.covered) == (first.vector_name, first.fingerprint, 3)


def test_another_model_is_refused_an_emptied_collection(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain", count=6)
    attach_vector(qdrant, NAME, model)
    qdrant.delete(NAME, models.Filter(must=[]), wait=True)
    with pytest.raises(FingerprintMismatch):
        attach_vector(qdrant, NAME, HashModel(name="care", salt="other"))


def _gone() -> Exception:
    """Return the error of a collection that is dropped in the middle of a pass."""
    with pytest.raises(Rejected) as raised, closing(QdrantClient(":memory:")) as client:
        client.create_collection(NAME, models.VectorParams(size=2, distance=models.Distance.DOT))
        there = Collection(client, NAME)
        assert there.schema
        client.delete_collection(NAME)
        there.sample(1)
    return raised.value


def _write(url: str) -> None:
    client = QdrantClient(url=url, check_compatibility=False)
    for extra in range(101, 141, 2):
        client.upsert(NAME, [point("named", "plain", extra, f"新增第{extra}段")], wait=True)
    client.close()


def test_a_vector_of_another_model_ends_it(server: StandIn, client: QdrantClient, pair_folder: Path) -> None:
    fill(client, "named", "plain", count=4)
    attach_vector(client, NAME, HashModel(name="tiny-pair"))
    with _start(server, pair_folder) as process:
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (4, "")
    assert "error: vector 'tiny-pair'" in errors


def test_passes_that_do_not_get_through_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = object()
    failures = [Unreachable("gone"), FolderLocked("open elsewhere"), TooFewDocuments("2")]
    away = [NoCollection("articles", []), _gone()]
    outcomes: list[object] = [*failures, done, *away, done, Rejected("wrong")]

    def run_pass(_: threading.Event) -> AttachReport:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[return-value]

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    following = passes(run_pass, 0)
    for failed in (failures, away):
        assert next(following) is done
        assert capsys.readouterr().err.count("this pass failed") == len(failed)
    with pytest.raises(Rejected, match="wrong"):
        next(following)


@pytest.mark.parametrize("error", [NoCollection("articels", []), FingerprintMismatch("other"), Rejected("wrong")])
def test_what_the_next_pass_would_find_as_well_ends_it(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run_pass(_: threading.Event) -> AttachReport:
        raise error

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(type(error)):
        next(passes(run_pass, 0))


@pytest.mark.parametrize(
    "command", [["attach", NAME, "--watch"], ["verify", NAME, "--every"], ["learn", NAME, "--watch"]]
)
def test_a_loop_without_a_pause_is_refused(command: list[str]) -> None:
    assert CliRunner().invoke(care, [*command, "0"]).exit_code == 2


def test_it_ends_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert list(passes(lambda stop: stop.set(), 1_000_000)) == [None]


def test_a_pass_that_is_told_to_end_keeps_what_it_has(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain")
    stop, stopping = threading.Event(), HashModel(name="care")
    stopping._encoder = BusyEncoder(lambda batch: stop.set() if batch == 2 else None)
    settings = AttachSettings(batch_tokens=200)
    report = attach_vector(qdrant, NAME, stopping, settings=settings, stop=stop)
    assert 0 < report.encoded == report.covered < 40
    assert report.encoded == len(stopping._encoder.encoded)
    again = attach_vector(qdrant, NAME, model, settings=settings)
    assert (again.unchanged, again.covered) == (report.encoded, 40)
