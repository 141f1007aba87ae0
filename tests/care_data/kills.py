"""``python -m tests.care_data.kills``: the chain killed at random steps; then the result and the bill are compared."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.perf.measured import output_option, save_measured
from tests.care_data.clinic import config, rater, write_collection
from tests.care_data.endpoint import Endpoint, Faults

FAULTS = Faults(busy=0.1, broken=0.05, slow=0.02, wrong_json=0.06, refused=0.05, partial=0.1, cut=0.1)
JUDGES = {"ann": 1, "bob": 1, "strong": 2}
RATE = rater({"ann": 0.05, "bob": 0.1, "strong": 0.01})
COMPARED = ("labels.jsonl", "judgements.jsonl", "pool.jsonl", "benchmark/qrels/test.tsv", "benchmark/corpus.jsonl")
STEPS = {"pool": "pool.json", "judge": "judge.json", "vote": "vote.json"}


@dataclass(frozen=True, slots=True)
class Kills:
    """What a disturbed run did, against one that was left alone."""

    endpoint_knows_idempotency_key: bool
    kills: int
    killed_in: Mapping[str, int]
    """Kills by step."""
    same_result: bool
    """Every file of the result is the same, byte for byte."""
    calls: int
    """Different calls of the undisturbed run."""
    billed: int
    """Calls that the endpoint billed in the disturbed run."""
    stored_and_sent_again: int
    """Calls that were sent although their answer was in the ledger: 0, or the ledger is no use."""
    billed_twice: int
    """Calls on their way at a kill or at a time-out, billed again by an endpoint that does not know the key."""
    cost: float
    cost_undisturbed: float
    at_risk: float
    """What the ledger reports as possibly paid without an answer; over-estimated, as it is the highest price."""


def run_killed(folder: Path, kills: int, *, seed: int = 0, questions: int = 60, idempotent: bool = True) -> Kills:
    """Kill the chain, finish it, and compare it with one that was not killed."""
    (alone := folder / "alone").mkdir()
    write_collection(folder / "qdrant")
    shutil.copytree(folder / "qdrant", alone / "qdrant")
    with Endpoint(RATE, FAULTS, idempotent=idempotent) as calm:
        began = time.perf_counter()
        _start(config(alone, calm.url, JUDGES, questions=questions, judging="batch = 4")).wait()
        seconds, calls = time.perf_counter() - began, len(calm.bill.billed)
    draw, killed_in, stored_again = random.Random(seed), Counter[str](), 0
    with Endpoint(RATE, FAULTS, idempotent=idempotent) as endpoint:
        path = config(folder, endpoint.url, JUDGES, questions=questions, judging="batch = 4")
        while killed_in.total() < kills:
            before, sent = _stored(folder), Counter(endpoint.bill.sent)
            finished = _kill(path, endpoint, draw, max(2, calls // kills), seconds)
            stored_again += sum(endpoint.bill.sent[key] > sent[key] for key in before)
            if finished:
                # What is paid is in the ledger; all other files are made again, and killed again.
                for file in (folder / "clinic").glob("*.json*"):
                    file.unlink()
            else:
                killed_in[next((step for step, file in STEPS.items() if not _there(folder, file)), "build")] += 1
        before, sent = _stored(folder), Counter(endpoint.bill.sent)
        if _start(path).wait() != 0:
            raise RuntimeError("the last run failed")
        stored_again += sum(endpoint.bill.sent[key] > sent[key] for key in before)
        ours, theirs = (json.loads((root / "clinic/judge.json").read_text("utf-8")) for root in (folder, alone))
        same = (_read(folder, name) == _read(alone, name) for name in COMPARED)
        return Kills(
            endpoint_knows_idempotency_key=idempotent,
            kills=killed_in.total(),
            killed_in=killed_in,
            same_result=all(same),
            calls=calls,
            billed=endpoint.bill.billed.total(),
            stored_and_sent_again=stored_again,
            billed_twice=sum(count > 1 for count in endpoint.bill.billed.values()),
            cost=ours["cost"],
            cost_undisturbed=theirs["cost"],
            at_risk=ours["at_risk"],
        )


def _kill(path: Path, endpoint: Endpoint, draw: random.Random, answers: int, seconds: float) -> bool:
    """Start the chain and kill it after a few answers or seconds; return whether it finished before that."""
    left, lock = draw.randint(1, 2 * answers), threading.Lock()
    process = _start(path)

    def count_down() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left == 0:
                os.kill(process.pid, signal.SIGKILL)

    # Half of the kills come while an answer is on its way, the others at any moment.
    counted = draw.random() < 0.5
    endpoint.before_answer = count_down if counted else lambda: None
    try:
        process.wait(timeout=None if counted else draw.uniform(0.05, 0.8) * seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    endpoint.before_answer = lambda: None
    return process.wait() == 0


def _start(path: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "care_data.cli", "--quiet", "run", str(path)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _stored(folder: Path) -> set[str]:
    ledger = folder / "clinic" / "calls.sqlite"
    if not ledger.is_file():
        return set()
    with sqlite3.connect(ledger) as database:
        tables = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchall()
        found = database.execute("SELECT key FROM calls WHERE answer IS NOT NULL").fetchall() if tables else []
    database.close()
    return {key for (key,) in found}


def _there(folder: Path, name: str) -> bool:
    return (folder / "clinic" / name).is_file()


def _read(root: Path, name: str) -> bytes:
    return (root / "clinic" / name).read_bytes()


@click.command()
@click.option("--kills", type=click.IntRange(1), default=60, show_default=True, help="Processes to kill, in each case.")
@click.option("--questions", type=click.IntRange(1), default=60, show_default=True, help="Questions of the sample.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random moments.")
@output_option
def main(kills: int, questions: int, seed: int, output: Path) -> None:
    """Kill `care-data run` at random steps, with an endpoint that knows the Idempotency-Key header, and without.

    \b
    Example:
      python -m tests.care_data.kills --output benchmarks/results/care-data-kills.json
    """
    found = []
    for idempotent in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            found.append(asdict(run_killed(Path(folder), kills, seed=seed, questions=questions, idempotent=idempotent)))
        settings = {"seed": seed, "questions": questions}
        save_measured(output, {"what": "care-data run, killed at random steps", **settings, "cases": found})


if __name__ == "__main__":
    main()
