"""`care switch` below other clients that write and search; itself, a reader or the server is killed at a random moment.

One more run ends it. No query fails while the server is there, and none is searched in the vector of the other model.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from qdrant_client import models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.errors import CareError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.switch.switch import retire_vector, switch_collection, undo_switch
from care_qdrant.types import TermVector, Vectors
from care_qdrant.vectors.attach import attach_vector
from tests.reliability.attachment import TEXTS_PER_SECOND, VECTOR_NAME, fill
from tests.reliability.concurrent_writers import Writers, compare
from tests.reliability.ingestion import Target
from tests.reliability.processes import QdrantServer
from tests.reliability.ready_model import ReadyModel
from tests.reliability.sample_collection import DIM, make_point
from tests.reliability.trials import FORKSERVER, GONE_SECONDS, Trial

if TYPE_CHECKING:
    from care_qdrant.model.care_model import CareModel

Victim = Literal["switch", "reader", "server"]
VICTIMS: tuple[Victim, ...] = ("switch", "reader", "server")
UNTOUCHED = 50
"""Points that the writers leave alone, whose texts are the questions."""
PAUSE_SECONDS = 0.02
"""From one query of a reader to the next."""
LEAST_SCORE = 0.999
"""Least score of the best hit of a stored text; a query in the vector of another model finds none near it."""
CHECK_SECONDS = 5.0
"""Time that a check of the readers holds, in which they follow the first switch."""
FOLLOWED_SECONDS = 10.0
"""Longest time in which a reader has to follow, on a machine that does other work as well."""
BACKFILL_SECONDS = 5.0
"""Time in which all texts are encoded."""
_BEFORE = "ready-before"


class ReadyPair(ReadyModel):
    """A `ReadyModel` that encodes queries as documents."""

    alpha, term_weights_digest = 1.0, None

    def __init__(self, name: str, texts_per_second: float | None = None) -> None:
        super().__init__(DIM, texts_per_second=texts_per_second)
        self.name = name
        if name != VECTOR_NAME:
            rows = np.random.default_rng(1).normal(size=self.document_encoder.vectors.shape).astype(np.float32)
            self.document_encoder.vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    @property
    def fingerprint(self) -> str:
        return self.contract().fingerprint

    def contract(self) -> VectorContract:
        known = super().contract()
        return known if self.name == VECTOR_NAME else VectorContract(sha256(b"before").hexdigest(), self.name, DIM)

    def encode_query(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode queries into unit vectors: (len(texts), dim)."""
        return self.document_encoder.encode(texts, prompt=prompt)

    def query_terms(self, text: str, analyser: Analyser = DEFAULT) -> TermVector:
        """Return the BM25 terms of a query."""
        return bm25.query_vector(text, analyser)


@dataclass(frozen=True, slots=True)
class Answers:
    """The log of a reader: the time, the vector and the score of the best hit of each query, or the error."""

    path: Path

    def read(self) -> list[list[str]]:
        """Return the lines that a reader, which may have been killed, has finished."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        return [line.rstrip("\n").split("\t") for line in lines if line.endswith("\n")]

    def await_vector(self, name: str, since: float) -> float:
        """Wait until a query is answered from a vector; return the seconds since a time, infinite if it was never."""
        while time.time() < since + FOLLOWED_SECONDS:
            times = [float(line[0]) for line in self.read() if line[1] == name]
            if times[-1:] and times[-1] > since:
                return min(at for at in times if at > since) - since
            time.sleep(PAUSE_SECONDS)
        return math.inf


def switch_trials(points: int, trials: int, scratch: Path, server: QdrantServer, seed: int) -> Iterator[Trial]:
    """Kill switches, their readers and their server in turn, each with a collection of its own."""
    rng = random.Random(seed)
    seconds = 10.0
    for number in range(trials):
        target, before = fill(f"switch-{seed}-{number}", points, scratch, server.url)
        with target.open() as client:
            attach_vector(client, target.collection, ReadyPair(_BEFORE))
        writers = Writers(target, dict(before), list(range(UNTOUCHED, points)), rng)
        answers, victim = Answers(scratch / f"answers-{number}"), VICTIMS[number % len(VICTIMS)]
        trial, took = _trial(writers, answers, rng, victim, seconds, server)
        seconds = took or seconds
        yield trial
        with target.open() as client:
            client.delete_collection(target.collection)


def _trial(
    writers: Writers, answers: Answers, rng: random.Random, victim: Victim, seconds: float, server: QdrantServer
) -> tuple[Trial, float | None]:
    """Return the trial, and the seconds that a switch took if it was not killed."""
    target = writers.target
    reader = _start_reader(target, answers)
    writers.start()
    began = time.monotonic()
    speed = max(TEXTS_PER_SECOND, len(writers.numbers) / BACKFILL_SECONDS)
    switch = FORKSERVER.Process(target=_switch_and_back, args=(target, speed))
    switch.start()
    switch.join(moment := round(rng.uniform(0, seconds), 3))
    was_switching = switch.is_alive()
    gone = (0.0, 0.0)
    if victim == "server":
        away = time.time()
        server.kill()
        time.sleep(rng.uniform(*GONE_SECONDS))
        server.start()
        gone = away, time.time() + GONE_SECONDS[1]
    elif victim == "reader":
        reader.kill()
        reader.join()
        reader = _start_reader(target, answers)
    else:
        switch.kill()
    switch.join()
    took = time.monotonic() - began if victim == "reader" else None
    _end(target)
    with target.open() as client:
        followed = [answers.await_vector(VECTOR_NAME, time.time())]
        for _ in range(2):
            since = time.time()
            followed.append(answers.await_vector(undo_switch(client, target.collection).now.vector, since))
        writers.stop()
        switch_collection(client, target.collection, ReadyPair(VECTOR_NAME))
        retire_vector(client, target.collection, grace_seconds=0)
        followed.append(answers.await_vector(VECTOR_NAME, time.time()))
        is_left = Collection(client, target.collection).refresh().has_vector(_BEFORE)
    reader.kill()
    reader.join()
    observed, violations = compare(writers)
    lines = answers.read()
    failed = [float(line[0]) for line in lines if line[1] == "failed"]
    found = {
        "failed_queries": sum(not gone[0] <= at <= gone[1] for at in failed),
        "mixed_queries": sum(line[1] != "failed" and float(line[2]) < LEAST_SCORE for line in lines),
        "not_followed": followed.count(math.inf),
        "not_retired": int(is_left),
    }
    seen = {
        "rollback_followed_ms": 0 if math.inf in followed else round(1000 * max(followed[1:3])),
        "queries": len(lines),
        "of_the_vector_before": sum(line[1] == _BEFORE for line in lines),
        "of_the_new_vector": sum(line[1] == VECTOR_NAME for line in lines),
        "failed_while_the_server_was_away": len(failed) - found["failed_queries"],
    }
    return Trial(f"switch: {victim} killed", moment, was_switching, {**observed, **seen}, {**violations, **found}), took


def _start_reader(target: Target, answers: Answers) -> BaseProcess:
    process = FORKSERVER.Process(target=_read, args=(target, answers.path))
    process.start()
    return process


def _read(target: Target, path: Path) -> None:
    """Search stored texts that no writer touches, by whichever of the two models is active."""
    texts = [str((make_point(number, 0).payload or {})["text"]) for number in range(UNTOUCHED)]
    exact = models.SearchParams(exact=True)
    with path.open("a") as log:
        while True:  # until it is killed
            with suppress(CareError), target.open() as client:
                old, new = cast("CareModel", ReadyPair(_BEFORE)), cast("CareModel", ReadyPair(VECTOR_NAME))
                reader = Retriever(
                    client,
                    target.collection,
                    old,
                    mode="dense",
                    other_models=[new],
                    params=exact,
                    check_seconds=CHECK_SECONDS,
                )
                for number in range(1_000_000_000):
                    try:
                        [[hit]] = reader.search([texts[number % UNTOUCHED]], top_k=1)
                        log.write(f"{time.time()}\t{reader.resolved.vector_name}\t{hit.score}\n")
                    except Exception as error:
                        log.write(f"{time.time()}\tfailed\t{type(error).__name__}\n")
                    log.flush()
                    time.sleep(PAUSE_SECONDS)


def _switch_and_back(target: Target, texts_per_second: float) -> None:
    """Switch readers, return them, and switch them once more."""
    with target.open() as client:
        new, old = ReadyPair(VECTOR_NAME, texts_per_second), ReadyPair(_BEFORE)
        switch_collection(client, target.collection, new, old, accept="a trial")
        for _ in range(2):
            undo_switch(client, target.collection)


def _end(target: Target) -> None:
    """Do what a person does after the kill: run the same command again."""
    with target.open() as client:
        switch_collection(client, target.collection, ReadyPair(VECTOR_NAME), ReadyPair(_BEFORE), accept="a trial")
