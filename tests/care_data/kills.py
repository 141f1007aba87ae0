"""``python -m tests.care_data.kills``: from a collection to scores, killed at random; result and bill are compared."""

import json
import multiprocessing
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import click

from benchmarks.perf.measured import output_option, save_measured
from tests.care_data.clinic import config, rater, write_collection
from tests.care_data.endpoint import Endpoint, Faults

FAULTS = Faults(busy=0.1, broken=0.05, slow=0.02, wrong_json=0.06, refused=0.05, partial=0.1, cut=0.1)
JUDGES = {"ann": 1, "bob": 1, "strong": 2}
RATE = rater({"ann": 0.05, "bob": 0.1, "strong": 0.01})
COMPARED = ("labels.jsonl", "judgements.jsonl", "pool.jsonl", "benchmark/qrels/test.tsv", "benchmark/corpus.jsonl")
STEPS = {
    "pool": "clinic/pool.json",
    "judge": "clinic/judge.json",
    "vote": "clinic/vote.json",
    "build": "clinic/benchmark/README.md",
    "score": "scores/report.html",
}
"""Step → the last file that it writes."""


@dataclass(frozen=True, slots=True)
class Kills:
    """Result of a disturbed run, against one that was left alone."""

    endpoint_knows_idempotency_key: bool
    kills: int
    killed_in: Mapping[str, int]
    """Kills by step."""
    same_result: bool
    """Every file of the result is the same, byte for byte, and so are the scores."""
    scores: Mapping[str, Any]
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
    """Amount that the ledger reports as possibly paid without an answer; an upper bound, at the highest price."""


def work(path: Path, score: bool) -> None:
    """Make the benchmark of a configuration, and score it; the whole of a process that is killed."""
    from care_data.chain import run_chain
    from care_data.config import load_config

    sys.stdout = sys.stderr = (path.parent / "log.txt").open("a", encoding="utf-8")
    run_chain(load_config(path))
    if not score:
        return
    from care_benchmarks.cli import care_bench

    benchmark, scores = path.parent / "clinic" / "benchmark", path.parent / "scores"
    arguments = ["run", str(benchmark), "--control", "bm25", "--speed", "none"]
    arguments += ["--output", str(scores)]
    care_bench(arguments, standalone_mode=False)


def run_killed(
    folder: Path, kills: int, *, seed: int = 0, questions: int = 60, idempotent: bool = True, score: bool = True
) -> Kills:
    """Kill the chain, finish it, and compare it with one that was not killed."""
    steps = {step: file for step, file in STEPS.items() if score or step != "score"}
    (alone := folder / "alone").mkdir()
    write_collection(folder / "qdrant")
    shutil.copytree(folder / "qdrant", alone / "qdrant")
    with Endpoint(RATE, FAULTS, idempotent=idempotent) as calm:
        began = time.time()
        path = config(alone, calm.url, JUDGES, questions=questions, judging="batch = 4", judge="retries = 20")
        _finish(path, score)
        ends = [began, *((alone / file).stat().st_mtime for file in steps.values())]
        seconds = {step: after - before for step, before, after in zip(steps, ends[:-1], ends[1:], strict=True)}
        calls = len(calm.bill.billed)
    draw, killed_in, stored_again, judged = random.Random(seed), Counter[str](), 0, False
    with Endpoint(RATE, FAULTS, idempotent=idempotent) as endpoint:
        path = config(folder, endpoint.url, JUDGES, questions=questions, judging="batch = 4", judge="retries = 20")
        while killed_in.total() < kills:
            judged = judged or (folder / steps["judge"]).is_file()
            # Once all is paid, steps are made again from the ledger, and killed again.
            step = draw.choice([*steps, *steps][:-1] if judged else ["pool", "judge", "judge", "judge"])
            for file in list(steps.values())[list(steps).index(step) :]:
                (folder / file).unlink(missing_ok=True)
            before, sent = _stored(folder), Counter(endpoint.bill.sent)
            if _kill(path, endpoint, draw, step, 3 * calls // kills, seconds, score):
                step = next((name for name, file in steps.items() if not (folder / file).is_file()), "score")
                killed_in[step] += 1
                click.echo(f"{killed_in.total()} killed, this one in {step}", err=True)
            stored_again += sum(endpoint.bill.sent[key] > sent[key] for key in before)
        before, sent = _stored(folder), Counter(endpoint.bill.sent)
        _finish(path, score)
        stored_again += sum(endpoint.bill.sent[key] > sent[key] for key in before)
        ours, theirs = (json.loads((root / "clinic/judge.json").read_text("utf-8")) for root in (folder, alone))
        same = [(folder / "clinic" / name).read_bytes() == (alone / "clinic" / name).read_bytes() for name in COMPARED]
        return Kills(
            endpoint_knows_idempotency_key=idempotent,
            kills=killed_in.total(),
            killed_in=dict(killed_in),
            same_result=all(same) and _scores(folder) == _scores(alone),
            scores={name: {each["task"]: each["value"] for each in of} for name, of in _scores(folder).items()},
            calls=calls,
            billed=endpoint.bill.billed.total(),
            stored_and_sent_again=stored_again,
            billed_twice=sum(count > 1 for count in endpoint.bill.billed.values()),
            cost=ours["cost"],
            cost_undisturbed=theirs["cost"],
            at_risk=ours["at_risk"],
        )


def _kill(
    path: Path,
    endpoint: Endpoint,
    draw: random.Random,
    step: str,
    answers: int,
    seconds: Mapping[str, float],
    score: bool,
) -> bool:
    """Start the chain and kill it in a step, after a few answers or some time; return whether it was still running."""
    left, lock, paid = draw.randint(1, max(1, answers)), threading.Lock(), threading.Event()
    process = _start(path, score)
    at_once = draw.random() < 0.5

    def count_down() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left == 0:
                paid.set()
                if at_once:
                    process.kill()

    # Half of the kills of the judges come while an answer is on its way, the others a moment later.
    endpoint.before_answer = count_down if step == "judge" else lambda: None
    earlier = list(STEPS.values())[: list(STEPS).index(step)]
    while process.is_alive() and not all((path.parent / file).is_file() for file in earlier):
        time.sleep(0.01)
    end = time.monotonic() + seconds[step] * (1.0 if step == "judge" else draw.random())
    own = path.parent / STEPS[step]
    while process.is_alive() and not own.is_file() and not paid.wait(0.01) and time.monotonic() < end:
        pass
    process.join(0.2 * draw.random())
    process.kill()
    process.join()
    endpoint.before_answer = lambda: None
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a run ended with {process.exitcode}")
    return process.exitcode != 0


def _finish(path: Path, score: bool) -> None:
    process = _start(path, score)
    process.join()
    if process.exitcode != 0:
        log = (path.parent / "log.txt").read_text(encoding="utf-8")
        raise RuntimeError(f"a run that nobody killed ended with {process.exitcode}: {log[-2000:]}")


def _start(path: Path, score: bool) -> ForkServerProcess:
    """Fork a process from one that has imported everything, which is most of the time of a start."""
    context = multiprocessing.get_context("forkserver")
    # What the modules import when they are used is in the list, too.
    scoring = ["care_benchmarks.run", "mteb", "sentence_transformers"] if score else []
    context.set_forkserver_preload(["care_data.chain", *scoring, __name__])
    process = context.Process(target=work, args=(path, score), daemon=True)
    process.start()
    return process


def _stored(folder: Path) -> set[str]:
    ledger = folder / "clinic" / "calls.sqlite"
    if not ledger.is_file():
        return set()
    with sqlite3.connect(ledger) as database:
        tables = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchall()
        found = database.execute("SELECT key FROM calls WHERE answer IS NOT NULL").fetchall() if tables else []
    database.close()
    return {key for (key,) in found}


def _scores(root: Path) -> dict[str, Any]:
    if not (root / "scores").is_dir():
        return {}
    result = json.loads((root / "scores" / "result.json").read_text(encoding="utf-8"))
    return {system["name"]: system["scores"] for system in result["systems"]}


@click.command()
@click.option("--kills", type=click.IntRange(1), default=60, show_default=True, help="Processes to kill, in each case.")
@click.option("--questions", type=click.IntRange(1), default=60, show_default=True, help="Questions of the sample.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random moments.")
@output_option
def main(kills: int, questions: int, seed: int, output: Path) -> None:
    """Kill `care-data run` and `care-bench run` at random steps, with an endpoint that knows Idempotency-Key or not.

    \b
    Example:
      python -m tests.care_data.kills --output benchmarks/results/care-data-kills.json
    """
    found = []
    for idempotent in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            found.append(asdict(run_killed(Path(folder), kills, seed=seed, questions=questions, idempotent=idempotent)))
        settings = {"seed": seed, "questions": questions}
        save_measured(output, {"what": "care-data and care-bench, killed at random steps", **settings, "cases": found})


if __name__ == "__main__":
    main()
