"""Kills attach on a server while others add, edit, replace and delete points of the same collection.

They go on during the killed run and during the next one, which goes on where it was. When they rest, one more run has
to give every point the vector of the text that it has then; and every point has to be what they last made it: nothing
lost, nothing changed, nothing that they deleted back again.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from qdrant_client import QdrantClient

from care_benchmarks.deployment.kill_attach import Place, attach_once, look, wrong_vectors
from care_benchmarks.deployment.sample import Contents, make_collection, make_point, point_contents, read_contents
from care_benchmarks.killing import Killer, time_run
from care_qdrant.store.connection import open_client


@dataclass(frozen=True, slots=True)
class CrowdTrial:
    """A killed attach, one that others wrote during, and one when they rested."""

    attach_killed_after_seconds: float
    attach_was_killed: bool
    added: int
    edited: int
    replaced: int
    deleted: int
    changed: int
    """Points that are lost, or not what the others last made them."""
    resurrected: int
    """Points that they deleted, and that are there."""
    wrong_vectors: int
    """Points without the vector of their text, after the last run."""
    uncovered: int
    """Points without any, by that run's own report."""

    @property
    def is_good(self) -> bool:
        """Say whether the others' points are theirs, and ours are right."""
        return not (self.changed or self.resurrected or self.wrong_vectors or self.uncovered)


@dataclass(slots=True)
class Crowd:
    """Others who write to a collection, and what it has to hold therefore."""

    name: str
    contents: dict[object, tuple[dict[str, object], dict[str, object]]]
    numbers: list[int]
    """Of the points that are there."""
    chance: random.Random
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("added", "edited", "replaced", "deleted"), 0))
    gone: set[object] = field(default_factory=set)
    next_number: int = 1_000_000

    def write_once(self, client: QdrantClient) -> None:
        """Do one of the four things to one point."""
        what = self.chance.choice(list(self.done))
        if what == "added":
            self.numbers.append(self.next_number)
            self._upsert(client, self.next_number)
            self.next_number += 1
        elif what == "replaced":
            self._upsert(client, self.chance.choice(self.numbers))
        elif what == "edited":
            self._edit(client, make_point(self.chance.choice(self.numbers), 0).id)
        else:
            identity = make_point(self.numbers.pop(self.chance.randrange(len(self.numbers))), 0).id
            client.delete(self.name, [identity], wait=True)
            self.gone.add(identity)
            del self.contents[identity]
        self.done[what] += 1

    def _upsert(self, client: QdrantClient, number: int) -> None:
        point = make_point(number, self.chance.randrange(1_000_000))
        client.upsert(self.name, [point], wait=True)
        self.contents[point.id] = point_contents(point)

    def _edit(self, client: QdrantClient, identity: object) -> None:
        edit = {"text": f"edited {self.chance.randrange(1_000_000)}"}
        client.set_payload(self.name, edit, points=[identity], wait=True)  # type: ignore[list-item]
        payload, vectors = self.contents[identity]
        self.contents[identity] = ({**payload, **edit}, vectors)


def run_trials(trials: int, points: int, url: str, seed: int) -> Iterator[CrowdTrial]:
    """Give one trial after the other, until so many attaches were killed while they ran.

    Args:
        trials: How many to kill.
        points: Of each collection at the beginning.
        url: Of a server.
        seed: Of the moments, and of what the others do.
    """
    chance = random.Random(seed)
    # The first run also had to start the server of forks.
    seconds = [time_run(attach_once, _fill(points, url, f"crowd-timed-{run}")[0]) for run in range(2)][1]
    attaches, killed, number = Killer(chance, seconds), 0, 0
    while killed < trials:
        place, before = _fill(points, url, f"crowd-{number}")
        trial = _try(place, Crowd(place.name, dict(before), list(range(points)), chance), attaches)
        killed, number = killed + trial.attach_was_killed, number + 1
        yield trial


def _try(place: Place, crowd: Crowd, attaches: Killer) -> CrowdTrial:
    with _writing(crowd, place):
        was_killed = attaches.kill(attach_once, place)
        attach_once(place)
    report = attach_once(place)
    with place.open() as client:
        now = read_contents(client, place.name)
        changed = look(client, place.name, crowd.contents)[1]
        wrong = wrong_vectors(client, place.name)
    resurrected = len(crowd.gone & now.keys())
    return CrowdTrial(
        attach_killed_after_seconds=attaches.moment,
        attach_was_killed=was_killed,
        **crowd.done,
        changed=changed - resurrected,
        resurrected=resurrected,
        wrong_vectors=wrong,
        uncovered=report.points - report.covered,
    )


@contextmanager
def _writing(crowd: Crowd, place: Place) -> Iterator[None]:
    """Let the others write from a thread of their own, as fast as they can."""
    rest = threading.Event()

    def write() -> None:
        with open_client(url=place.target) as client:
            while not rest.is_set():
                crowd.write_once(client)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        rest.set()
        thread.join()


def _fill(points: int, url: str, name: str) -> tuple[Place, Contents]:
    place = Place("server", url, name)
    with place.open() as client:
        make_collection(client, name, points)
        return place, read_contents(client, name)
