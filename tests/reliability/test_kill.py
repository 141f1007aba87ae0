"""A few trials of each kind; ``python -m tests.reliability`` runs many."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from care_benchmarks.cli import care_bench
from care_benchmarks.results import Result, load_result
from click.testing import CliRunner

from tests.reliability.attachment import attach_trials, detach_trials
from tests.reliability.concurrent_writers import concurrent_writer_trials
from tests.reliability.following import watch_trials
from tests.reliability.ingestion import Source, ingest_trials, make_source, outage_trial
from tests.reliability.processes import BINARY, QdrantServer, standin_server
from tests.reliability.publication import CASES, Case, publication_trials
from tests.reliability.ready_model import write_corpus
from tests.reliability.switching import switch_trials
from tests.reliability.trials import Trial

SEED = os.getpid()
TRIALS = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make_source(write_corpus(tmp_path_factory.mktemp("kill") / "corpus.jsonl", 300), dim=16)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with standin_server() as url:
        yield url


@pytest.fixture(params=["embedded", "server"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The URL of a server, or None for embedded databases."""
    return None if request.param == "embedded" else request.getfixturevalue("server")


def assert_good(found: list[Trial]) -> None:
    assert sum(trial.was_disturbed for trial in found) == TRIALS
    assert [trial for trial in found if not trial.is_good] == []


def test_one_more_run_makes_a_killed_ingestion_right(source: Source, url: str | None, tmp_path: Path) -> None:
    assert_good(list(ingest_trials(source, TRIALS, tmp_path, url, SEED)))


@pytest.mark.parametrize("run", [attach_trials, detach_trials])
def test_one_more_run_makes_a_killed_attach_or_detach_right(
    run: Callable[..., Iterator[Trial]], url: str | None, tmp_path: Path
) -> None:
    assert_good(list(run(100, TRIALS, tmp_path, url, SEED)))


@pytest.mark.slow
@pytest.mark.server
def test_a_killed_switch_costs_no_query_and_no_write(tmp_path: Path) -> None:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    with QdrantServer(BINARY, tmp_path) as server:
        assert [trial for trial in switch_trials(200, TRIALS, tmp_path, server, SEED) if not trial.is_good] == []


@pytest.mark.parametrize("case", CASES)
def test_one_more_run_makes_a_killed_promotion_or_publication_right(case: Case, server: str, tmp_path: Path) -> None:
    assert_good(list(publication_trials(case, 60, TRIALS, tmp_path, server, SEED)))


def test_nothing_of_concurrent_writers_is_lost_or_comes_back(tmp_path: Path) -> None:
    with standin_server() as url:
        found = list(concurrent_writer_trials(60, TRIALS, tmp_path, url, SEED))
    assert_good(found)
    assert sum(sum(trial.observed.values()) for trial in found) > 0


def test_a_killed_watch_follows_the_writers_when_it_is_started_again(server: str, tmp_path: Path) -> None:
    found = list(watch_trials(60, TRIALS, tmp_path, server, SEED))
    assert_good(found)
    assert sum(sum(trial.observed.values()) for trial in found) > 0


def test_an_ingestion_goes_on_when_the_server_is_back(tmp_path: Path) -> None:
    source = make_source(write_corpus(tmp_path / "corpus.jsonl", 1_500), dim=16)
    trial = outage_trial(source, documents=1_500, gone_seconds=0.5)
    assert trial.was_disturbed and trial.is_good, trial
    assert 0 < trial.observed["stored_when_gone"] < trial.observed["points"]


@pytest.mark.parametrize("name", ["encoded_again", "missing", "different_scores"])
def test_a_trial_with_a_violation_is_not_good(name: str) -> None:
    assert Trial("run", 1.0, True, {"stored": 5}, {"encoded_again": 0, "missing": 0, "different_scores": 0}).is_good
    assert not Trial("run", 1.0, True, {"stored": 5}, {name: 1}).is_good


# Whole runs import torch, mteb and LlamaIndex: minutes on a busy machine.


@pytest.mark.timeout(600)
def test_what_a_killed_run_has_stored_is_not_encoded_again(
    task_directory: Path, pair_folder: Path, tmp_path: Path
) -> None:
    run = ["run", task_directory, "--model", pair_folder, "--control", "query", "--speed", "none", "--output"]
    with process_of(*run, tmp_path / "killed") as process:
        # The log names a system when its turn comes: now the documents of the first one are stored.
        assert process.stderr and any(line.startswith("tiny-pair, query encoder twice: ") for line in process.stderr)
        process.kill()
    assert process.returncode == -9
    assert not (tmp_path / "killed/result.json").exists()
    for folder in ("killed", "undisturbed"):
        done = CliRunner().invoke(care_bench, [*map(str, run), str(tmp_path / folder)])
        assert done.exit_code == 0, done.output
    again, whole = (load_result(tmp_path / folder) for folder in ("killed", "undisturbed"))
    assert [indexing.encoded for indexing in again.systems[0].indexing] == [0, 0]
    assert [indexing.encoded for indexing in whole.systems[0].indexing] == [5, 5]
    # Another batch pads a document differently, and moves its vector by less.
    assert scores(again) == pytest.approx(scores(whole), abs=1e-6)


def process_of(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "ignore", "-m", "care_benchmarks.cli", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def scores(result: Result) -> dict[str, float]:
    return {f"{system.name}/{score.task}": score.value for system in result.systems for score in system.scores}
