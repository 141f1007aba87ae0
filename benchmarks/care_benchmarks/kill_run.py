"""Kills whole runs of the harness at random moments and checks that the same command finishes them.

What was stored at the moment of the kill must not be encoded again, and the scores must be those of a run that nobody
disturbed.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.killing import FORKS, Killer, time_run
from care_benchmarks.results import Result, load_result
from care_qdrant.errors import CareError
from care_qdrant.store.connection import open_client

SAME = 1e-6
"""Between scores: another batch pads a document otherwise, and moves its vector by less than that."""
LOG_FILE = "log"
FORKS.set_forkserver_preload(
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
    undisturbed = _finish(arguments, scratch / "undisturbed")
    killer = Killer(random.Random(seed), time_run(*_work(arguments, scratch / "timed")))
    for number in range(trials):
        output = scratch / f"trial-{number}"
        was_killed = killer.kill(*_work(arguments, output))
        stored = _stored(output / "qdrant")
        finished = _finish(arguments, output)
        beyond = stored + _encoded(finished) - _encoded(undisturbed)
        difference = _largest_difference(undisturbed, finished)
        yield Trial(killer.moment, was_killed, stored, max(0, beyond), max(0, -beyond), difference)


def _finish(arguments: Sequence[str], output: Path) -> Result:
    work, *given = _work(arguments, output)
    process = FORKS.Process(target=work, args=given)
    process.start()
    process.join()
    if process.exitcode:
        raise CareError(f"a run ended with {process.exitcode}: {(output / LOG_FILE).read_text()[-500:]}")
    return load_result(output)


def _work(arguments: Sequence[str], output: Path) -> tuple[Callable[[list[str], Path], None], list[str], Path]:
    """Give what a process of its own has to call, and with what."""
    output.mkdir(parents=True, exist_ok=True)
    return _care_bench, ["run", *arguments, "--output", str(output)], output / LOG_FILE


def _care_bench(arguments: list[str], log: Path) -> None:
    from care_benchmarks.cli import care_bench

    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        care_bench(arguments, standalone_mode=False)


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
