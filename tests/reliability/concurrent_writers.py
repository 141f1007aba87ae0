"""Attaches that are killed while other clients write: one more run, and every point is what they last made it."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from tests.reliability.attachment import attach_once, fill, look, wrong_vectors
from tests.reliability.ingestion import Target
from tests.reliability.sample_collection import make_point, point_contents, read_contents
from tests.reliability.trials import CLIENT_KILLED, Attempt, Counts, Fault, Trial, kill_trials

BEGIN_SECONDS = 30.0
"""Longest wait for the first connection."""
AGAIN_SECONDS = 0.05
LEAST_POINTS = 20
"""Fewest points of a collection: the number of points is a random walk, and of none there is nothing to edit."""


@dataclass(slots=True)
class Writers:
    """Other clients of a collection in a thread of their own, and the contents that it must have."""

    target: Target
    contents: dict[object, tuple[dict[str, object], dict[str, object]]]
    numbers: list[int]
    """Numbers of the existing points, as `make_point` takes them."""
    rng: random.Random
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("added", "edited", "replaced", "deleted"), 0))
    deleted: set[object] = field(default_factory=set)
    next_number: int = 1_000_000
    _begun: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to write as fast as possible, and return when that has begun."""
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()
        self._begun.wait(BEGIN_SECONDS)

    def stop(self) -> None:
        """Finish the current write and stop."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        with self.target.open() as client:
            self._begun.set()
            while not self._stopped.is_set():
                self._write_once(client)

    def _acknowledged(self, write: Callable[[], object]) -> None:
        """Send a write again and again until a server has done it: those here give the same when they are repeated."""
        while True:
            try:
                write()
                return
            except (ResponseHandlingException, UnexpectedResponse) as error:
                # A node of a cluster answers 500 for a moment when another one is gone.
                if isinstance(error, UnexpectedResponse) and (error.status_code or 0) < 500:
                    raise
                time.sleep(AGAIN_SECONDS)

    def _write_once(self, client: QdrantClient) -> None:
        name, what = self.target.collection, self.rng.choice(list(self.done))
        if what == "deleted" and len(self.numbers) <= LEAST_POINTS:
            return
        if what == "added":
            self.numbers.append(self.next_number)
            self._upsert(client, self.next_number)
            self.next_number += 1
        elif what == "replaced":
            self._upsert(client, self.rng.choice(self.numbers))
        elif what == "edited":
            self._edit(client, make_point(self.rng.choice(self.numbers), 0).id)
        else:
            identity = make_point(self.numbers.pop(self.rng.randrange(len(self.numbers))), 0).id
            self._acknowledged(lambda: client.delete(name, [identity], wait=True))
            self.deleted.add(identity)
            del self.contents[identity]
        self.done[what] += 1

    def _upsert(self, client: QdrantClient, number: int) -> None:
        point = make_point(number, self.rng.randrange(1_000_000))
        self._acknowledged(lambda: client.upsert(self.target.collection, [point], wait=True))
        self.contents[point.id] = point_contents(point)

    def _edit(self, client: QdrantClient, identity: object) -> None:
        edit = {"text": f"edited {self.rng.randrange(1_000_000)}"}
        where: list[models.ExtendedPointId] = [identity]  # type: ignore[list-item]
        self._acknowledged(lambda: client.set_payload(self.target.collection, edit, points=where, wait=True))
        payload, vectors = self.contents[identity]
        self.contents[identity] = ({**payload, **edit}, vectors)


def concurrent_writer_trials(
    points: int, trials: int, scratch: Path, url: str, seed: int, fault: Fault = CLIENT_KILLED
) -> Iterator[Trial]:
    """Kill attaches, or a server below them, while other clients write."""
    rng = random.Random(seed)

    def prepare(name: str) -> Attempt:
        target, before = fill(f"writers-{name}", points, scratch, url)
        writers = Writers(target, dict(before), list(range(points)), rng)
        return Attempt(partial(attach_once, target), partial(_verify, writers), writers.start)

    return kill_trials("attach beside concurrent writers", prepare, trials, seed, fault)


def _verify(writers: Writers) -> tuple[Counts, Counts]:
    attach_once(writers.target)
    writers.stop()
    return compare(writers)


def compare(writers: Writers) -> tuple[Counts, Counts]:
    """Attach once more; return what the writers, who have stopped, have written, and what is not as they left it."""
    target = writers.target
    report = attach_once(target)
    with target.open() as client:
        now = read_contents(client, target.collection)
        changed = look(client, target.collection, writers.contents)[1]
        wrong = wrong_vectors(client, target.collection)
    resurrected = len(writers.deleted & now.keys())
    violations = {
        "changed": changed - resurrected,
        "resurrected": resurrected,
        "wrong_vectors": wrong,
        "uncovered": report.points - report.covered,
    }
    return dict(writers.done), violations
