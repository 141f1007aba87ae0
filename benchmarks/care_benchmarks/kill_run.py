"""Kills whole runs of the harness at random moments and checks that the same command finishes them.

What was stored at the moment of the kill must not be encoded again, and the scores must be those of a run that nobody
disturbed.
"""

import contextlib
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.results import Result, load_result
from care_qdrant.database.connection import open_client
from care_qdrant.errors import CareError

SAME = 1e-6
"""Between scores: another batch pads a document otherwise, and moves its vector by less than that."""
_FORKS = multiprocessing.get_context("forkserver")
"""Starts a process in milliseconds, so that moments spread over the work and not over imports."""
_FORKS.set_forkserver_preload(
    [
        "care_benchmarks.run",
        "care_benchmarks.commands.run",
        "llama_index.core",
        "llama_index.embeddings.care",
        "llama_index.vector_stores.care",
        "sentence_transformers",
    ]
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One killed run, and the run that finished it."""

    killed_after_seconds: float
    was_killed: bool
    """False where it was done before its time came."""
    stored: int
    """Documents that were in the database after the kill."""
    encoded_again: int
    """Of those, documents that the second run encoded all the same."""
    missing: int
    """Documents that neither run encoded."""
    largest_difference: float
    """Of any score of any system from that of the undisturbed run."""

    @property
    def is_good(self) -> bool:
        """Say whether nothing was lost, repeated or different."""
        return not self.encoded_again and not self.missing and self.largest_difference <= SAME


def run_trials(arguments: Sequence[str], trials: int, scratch: Path, seed: int) -> Iterator[Trial]:
    """Give one trial after the other; the moments spread over the time that a run takes.

    Args:
        arguments: Of ``care-bench run``, without ``--output``.
        trials: How many runs to kill.
        scratch: An empty folder.
        seed: Of the moments.

    Raises:
        CareError: a run that nobody killed did not finish.
    """
    rng = random.Random(seed)
    _finish(arguments, scratch / "warm-up")  # the first also has to start the server of forks
    began = time.perf_counter()
    undisturbed = _finish(arguments, scratch / "undisturbed")
    seconds = time.perf_counter() - began
    for number in range(trials):
        output, moment = scratch / f"trial-{number}", rng.uniform(0, seconds)
        was_killed = _kill(arguments, output, moment)
        stored = _stored(output / "qdrant")
        finished = _finish(arguments, output)
        beyond = stored + _encoded(finished) - _encoded(undisturbed)
        difference = _largest_difference(undisturbed, finished)
        yield Trial(moment, was_killed, stored, max(0, beyond), max(0, -beyond), difference)


def _start(arguments: Sequence[str], output: Path) -> "multiprocessing.process.BaseProcess":
    output.mkdir(parents=True, exist_ok=True)
    process = _FORKS.Process(target=_care_bench, args=(["run", *arguments, "--output", str(output)], output / "log"))
    process.start()
    return process


def _care_bench(arguments: list[str], log: Path) -> None:
    from care_benchmarks.cli import care_bench

    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        care_bench(arguments, standalone_mode=False)


def _kill(arguments: Sequence[str], output: Path, moment: float) -> bool:
    """Start a run and send it SIGKILL; False if it was done before."""
    process = _start(arguments, output)
    process.join(moment)
    was_killed = process.is_alive()
    process.kill()
    process.join()
    return was_killed


def _finish(arguments: Sequence[str], output: Path) -> Result:
    process = _start(arguments, output)
    process.join()
    if process.exitcode:
        raise CareError(f"a run ended with {process.exitcode}: {(output / 'log').read_text()[-500:]}")
    return load_result(output)


def _stored(store: Path) -> int:
    """Count the documents in a database, which may not be there yet."""
    if not store.is_dir():
        return 0
    with open_client(path=store) as client:
        return sum(client.count(each.name).count for each in client.get_collections().collections)


def _encoded(result: Result) -> int:
    return sum(indexing.encoded for system in result.systems for indexing in system.indexing)


def _largest_difference(one: Result, other: Result) -> float:
    pairs = zip(one.systems, other.systems, strict=True)
    scores = ((a, b) for mine, theirs in pairs for a, b in zip(mine.scores, theirs.scores, strict=True))
    return max(abs(a.measures[name] - b.measures[name]) for a, b in scores for name in a.measures)
