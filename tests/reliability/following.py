"""``--watch`` beside other clients that write, killed and started again: it comes to the end of the work by itself."""

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from care_qdrant.console.watching import passes
from care_qdrant.qdrant.collection import Collection
from care_qdrant.vectors.attach import WATCHING, AttachReport, AttachSettings, attach_vector
from tests.reliability.attachment import TEXTS_PER_SECOND, attach_once, fill, wrong_vectors
from tests.reliability.concurrent_writers import Writers, compare
from tests.reliability.ingestion import Target
from tests.reliability.ready_model import ReadyModel
from tests.reliability.sample_collection import DIM
from tests.reliability.trials import CLIENT_KILLED, END_SECONDS, FORKSERVER, GONE_SECONDS, Fault, Trial

PAUSE_SECONDS = 0.1
"""From one pass to the next."""
MOMENTS = (0.0, 3.0)
"""Range from which the time of the fault after the start is drawn: a pass takes a fraction of it."""
FURTHER_SECONDS = 1.0
"""Time that the writers go on after the watch was started again."""


def watch_trials(
    points: int, trials: int, scratch: Path, url: str, seed: int, fault: Fault = CLIENT_KILLED
) -> Iterator[Trial]:
    """Kill watches, each of a collection of its own whose vector is there before."""
    rng = random.Random(seed)
    for number in range(trials):
        target, before = fill(f"watch-{seed}-{number}", points, scratch, url)
        attach_once(target, texts_per_second=None)
        yield _trial(Writers(target, dict(before), list(range(points)), rng), rng, fault)
        with target.open() as client:
            client.delete_collection(target.collection)


def _trial(writers: Writers, rng: random.Random, fault: Fault) -> Trial:
    process = _start(writers.target)
    writers.start()
    time.sleep(moment := round(rng.uniform(*MOMENTS), 3))
    was_watching = process.is_alive()
    if fault.victim != "server":
        process.kill()
        process.join()
    if fault.server is not None:
        fault.server.kill()
        time.sleep(rng.uniform(*GONE_SECONDS))
        fault.server.start()
    if fault.victim != "server":
        process = _start(writers.target)
    time.sleep(FURTHER_SECONDS)
    writers.stop()
    has_followed = _wait(writers.target)
    process.terminate()
    process.join(END_SECONDS)
    ended = {"not_followed": int(not has_followed), "not_ended_by_signal": int(process.exitcode != 0)}
    process.kill()
    observed, violations = compare(writers)
    return Trial(f"watch: {fault.victim} killed", moment, was_watching, observed, {**violations, **ended})


def _start(target: Target) -> BaseProcess:
    process = FORKSERVER.Process(target=_follow, args=(target,))
    process.start()
    return process


def _follow(target: Target) -> None:
    """Do what ``care attach --watch`` does."""
    model = ReadyModel(DIM, texts_per_second=TEXTS_PER_SECOND)
    attach = partial(attach_vector, model=model, settings=AttachSettings(batch_tokens=300))

    def run_pass(stop: threading.Event) -> AttachReport:
        with target.open() as client:
            return attach(Collection(client, target.collection, WATCHING), stop=stop)

    for _ in passes(run_pass, PAUSE_SECONDS):
        pass


def _wait(target: Target) -> bool:
    """Wait until every point has the vector of its text; return whether that came."""
    until = time.monotonic() + END_SECONDS
    with target.open() as client:
        while wrong_vectors(client, target.collection):
            if time.monotonic() > until:
                return False
            time.sleep(PAUSE_SECONDS)
    return True
