"""Kills attach, and then detach, at random moments and checks that one more run of each makes everything right.

At any moment the other vectors and the users' payloads have to be what they were. After one more attach every point
has its vector, and those that had it were not encoded again; after one more detach the collection is what it was
before all.
"""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from care_qdrant.store.attached import ATTACH_KEY
from qdrant_client import QdrantClient

from care_benchmarks.deployment.sample import DIM, Contents, differing, make_collection, read_contents
from care_benchmarks.ingestion.fake import ReadyModel
from care_benchmarks.killing import FORKS, Killer, time_run
from care_qdrant.attach.attach import AttachReport, AttachSettings, attach
from care_qdrant.attach.detach import detach
from care_qdrant.store.connection import open_client
from care_qdrant.store.payload import CARE_KEY

TargetKind = Literal["embedded", "server"]
KINDS: tuple[TargetKind, ...] = ("embedded", "server")
TEXTS_PER_SECOND = 100.0
"""Of an encoder that sleeps: slow enough that many moments fall between batches, and not before the first."""
FORKS.set_forkserver_preload([__name__])
_NAME = "ready-vectors"


@dataclass(frozen=True, slots=True)
class Trial:
    """A killed attach and the one that finished it, a killed detach and the one that finished that."""

    target: TargetKind
    attach_killed_after_seconds: float
    attach_was_killed: bool
    """False where it was done before its time came."""
    attached: int
    """Points that had the vector after the kill."""
    encoded_again: int
    """Of those, points that the next run encoded all the same."""
    wrong_vectors: int
    """Points without the right vector after that run."""
    detach_killed_after_seconds: float
    detach_was_killed: bool
    detached: int
    """Points that had lost the vector after the kill."""
    changed: int
    """Points of the users that were not what they should be, at any of the four looks."""

    @property
    def is_good(self) -> bool:
        """Say whether nothing was lost, repeated or changed."""
        return not (self.encoded_again or self.wrong_vectors or self.changed)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trial happens."""

    kind: TargetKind
    target: str
    name: str

    def open(self) -> AbstractContextManager[QdrantClient]:
        """Open the database."""
        return open_client(url=self.target) if self.kind == "server" else open_client(path=Path(self.target))


def run_trials(kind: TargetKind, trials: int, points: int, scratch: Path, url: str, seed: int) -> Iterator[Trial]:
    """Give one trial after the other; the moments spread over the time that a run takes.

    Args:
        kind: An embedded database of its own for each trial, or a collection of its own on the server.
        trials: How many attaches to kill; one that was done before its moment came is given, too, and not counted.
        points: Of each collection.
        scratch: An empty folder.
        url: Of a server.
        seed: Of the moments.
    """
    rng = random.Random(seed)
    for run in ("warm-up", "timed"):  # the first also has to start the server of forks
        place, _ = _fill(kind, points, scratch, url, run)
        attaches, detaches = Killer(rng, time_run(attach_once, place)), Killer(rng, time_run(_detach, place))
    killed = number = 0
    while killed < trials:
        place, before = _fill(kind, points, scratch, url, str(number))
        trial = _try(place, before, attaches, detaches)
        killed, number = killed + trial.attach_was_killed, number + 1
        yield trial


def _fill(kind: TargetKind, points: int, scratch: Path, url: str, number: str) -> tuple[Place, Contents]:
    name = f"attach-{kind}-{number}"
    place = Place(kind, url if kind == "server" else str(scratch / name), name)
    with place.open() as client:
        make_collection(client, name, points)
        return place, read_contents(client, name)


def _try(place: Place, before: Contents, attaches: Killer, detaches: Killer) -> Trial:
    attach_was_killed = attaches.kill(attach_once, place)
    with place.open() as client:
        attached, changed = look(client, place.name, before)
    report = attach_once(place)
    with place.open() as client:
        wrong = wrong_vectors(client, place.name)
        changed += look(client, place.name, before)[1]
    detach_was_killed = detaches.kill(_detach, place)
    with place.open() as client:
        left, now_changed = look(client, place.name, before)
        is_over = ATTACH_KEY not in (client.get_collection(place.name).config.metadata or {})
    if not is_over:
        _detach(place)
    with place.open() as client:
        after = read_contents(client, place.name)
    return Trial(
        target=place.kind,
        attach_killed_after_seconds=attaches.moment,
        attach_was_killed=attach_was_killed,
        attached=attached,
        encoded_again=max(0, report.encoded - (len(before) - attached)),
        wrong_vectors=wrong,
        detach_killed_after_seconds=detaches.moment,
        detach_was_killed=detach_was_killed,
        detached=len(before) - left,
        changed=changed + now_changed + differing(after, before) + len(before.keys() - after.keys()),
    )


def attach_once(place: Place) -> AttachReport:
    """Attach to the collection of a place."""
    settings = AttachSettings(batch_tokens=300)
    with place.open() as client:
        return attach(client, place.name, ReadyModel(DIM, texts_per_second=TEXTS_PER_SECOND), settings=settings)


def _detach(place: Place) -> None:
    with place.open() as client:
        detach(client, place.name, _NAME)


def look(client: QdrantClient, name: str, before: Contents) -> tuple[int, int]:
    """Give the points that have our vector and a hash that vouches for it, and those that are not what they were."""
    attached, theirs = 0, {}
    for key, (payload, vectors) in read_contents(client, name).items():
        hashes = (payload.get(CARE_KEY) or {}).get("vectors") or {}
        attached += _NAME in vectors and _NAME in hashes
        theirs[key] = (
            {field: value for field, value in payload.items() if field != CARE_KEY},
            {vector: row for vector, row in vectors.items() if vector != _NAME},
        )
    return attached, differing(theirs, before) + len(before.keys() - theirs.keys())


def wrong_vectors(client: QdrantClient, name: str) -> int:
    """Count the points that lack the vector of the text that they have."""
    contents = list(read_contents(client, name).values())
    wanted = ReadyModel(DIM).document_encoder.encode([str(payload["text"]) for payload, _ in contents])
    found = (vectors.get(_NAME) for _, vectors in contents)
    return sum(row is None or not np.allclose(row, want, atol=1e-5) for row, want in zip(found, wanted, strict=True))
