"""A few trials of the committed harness; ``care-bench ingestion kill`` does many."""

import os
from pathlib import Path

import pytest
from care_benchmarks.ingestion.fake import write_corpus
from care_benchmarks.ingestion.kill_harness import Bench, TargetKind, make_bench, run_trials
from care_benchmarks.ingestion.processes import standin_server


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(write_corpus(tmp_path_factory.mktemp("kill") / "corpus.jsonl", 300), dim=16)


@pytest.mark.parametrize("kind", ["embedded", "server"])
def test_one_more_run_makes_a_killed_ingestion_right(bench: Bench, kind: TargetKind, tmp_path: Path) -> None:
    with standin_server() as url:
        trials = list(run_trials(bench, kind, 2, tmp_path, url, seed=os.getpid()))
    assert len(trials) == 2
    assert [trial for trial in trials if not trial.is_good] == []
