"""Whole runs of ``care-bench run`` that are killed, and the same command again.

What was stored at the moment of the kill is not encoded again, and the scores are those of an undisturbed run.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from care_benchmarks.results import Result, load_result

from care_qdrant.qdrant.connection import open_client
from tests.reliability.trials import FORKSERVER, Attempt, Counts, Trial, kill_trials

TOLERANCE = 1e-6
"""Largest difference of equal scores: another batch pads a document differently, and moves its vector by less."""
_LOG_FILE = "log"


def run_trials(arguments: Sequence[str], trials: int, scratch: Path, seed: int) -> Iterator[Trial]:
    """Kill runs of the harness, each in a folder of its own.

    Args:
        arguments: Arguments of ``care-bench run``, without ``--output``.
        trials: Number of runs to kill.
        scratch: An empty folder.
        seed: Seed of the moments.

    Raises:
        RuntimeError: A run that nobody killed did not finish.
    """
    FORKSERVER.set_forkserver_preload(["care_benchmarks.run", "llama_index.core", "sentence_transformers"])
    undisturbed = _finish(arguments, scratch / "undisturbed")

    def prepare(name: str) -> Attempt:
        output = scratch / f"trial-{name}"
        return Attempt(_work(arguments, output), partial(_verify, arguments, output, undisturbed))

    return kill_trials("care-bench run", prepare, trials, seed)


def _verify(arguments: Sequence[str], output: Path, undisturbed: Result) -> tuple[Counts, Counts]:
    stored = _stored(output / "qdrant")
    finished = _finish(arguments, output)
    beyond = stored + _encoded(finished) - _encoded(undisturbed)
    violations = {
        "encoded_again": max(0, beyond),
        "missing": max(0, -beyond),
        "different_scores": _different_scores(undisturbed, finished),
    }
    return {"stored": stored}, violations


def _finish(arguments: Sequence[str], output: Path) -> Result:
    process = FORKSERVER.Process(target=_work(arguments, output))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"a run ended with {process.exitcode}: {(output / _LOG_FILE).read_text()[-500:]}")
    return load_result(output)


def _work(arguments: Sequence[str], output: Path) -> "partial[None]":
    output.mkdir(parents=True, exist_ok=True)
    return partial(_care_bench, ["run", *arguments, "--output", str(output)], output / _LOG_FILE)


def _care_bench(arguments: list[str], log: Path) -> None:
    from care_benchmarks.cli import care_bench

    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        care_bench(arguments, standalone_mode=False)


def _stored(store: Path) -> int:
    """Count the documents in a database, which may not exist yet."""
    if not store.is_dir():
        return 0
    with open_client(path=store) as client:
        return sum(client.count(each.name).count for each in client.get_collections().collections)


def _encoded(result: Result) -> int:
    return sum(indexing.encoded for system in result.systems for indexing in system.indexing)


def _different_scores(one: Result, other: Result) -> int:
    pairs = zip(one.systems, other.systems, strict=True)
    scores = ((a, b) for mine, theirs in pairs for a, b in zip(mine.scores, theirs.scores, strict=True))
    return sum(abs(a.measures[name] - b.measures[name]) > TOLERANCE for a, b in scores for name in a.measures)
