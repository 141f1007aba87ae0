"""Attaches and detaches that are killed, and one more run: the users' points stay as they were."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from qdrant_client import QdrantClient

from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import CARE_KEY
from care_qdrant.vectors.attach import AttachReport, AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from tests.reliability.ingestion import Target
from tests.reliability.ready_model import ReadyModel
from tests.reliability.sample_collection import DIM, Contents, distance, make_collection, read_contents
from tests.reliability.trials import CLIENT_KILLED, Attempt, Counts, Fault, Trial, kill_trials

TEXTS_PER_SECOND = 100.0
"""Speed of an encoder that sleeps: slow enough that many moments fall between batches, and not before the first."""
VECTOR_NAME = "ready-vectors"


def attach_trials(
    points: int, trials: int, scratch: Path, url: str | None, seed: int, fault: Fault = CLIENT_KILLED
) -> Iterator[Trial]:
    """Kill attaches, each to a collection of its own; without a URL, in embedded databases."""

    def prepare(name: str) -> Attempt:
        target, before = fill(f"attach-{name}", points, scratch, url)
        return Attempt(partial(attach_once, target), partial(_verify_attach, target, before))

    return kill_trials(f"attach, {_kind(url)}", prepare, trials, seed, fault)


def detach_trials(
    points: int, trials: int, scratch: Path, url: str | None, seed: int, fault: Fault = CLIENT_KILLED
) -> Iterator[Trial]:
    """Kill detaches from attached collections; see `attach_trials` for the arguments."""

    def prepare(name: str) -> Attempt:
        target, before = fill(f"detach-{name}", points, scratch, url)
        attach_once(target, texts_per_second=None)
        return Attempt(partial(_detach, target), partial(_verify_detach, target, before))

    return kill_trials(f"detach, {_kind(url)}", prepare, trials, seed, fault)


def fill(name: str, points: int, scratch: Path, url: str | None) -> tuple[Target, Contents]:
    """Create a collection without our vectors, and return it with its contents."""
    target = Target(url or str(scratch / name), name)
    with target.open() as client:
        make_collection(client, name, points)
        return target, read_contents(client, name)


def attach_once(target: Target, texts_per_second: float | None = TEXTS_PER_SECOND) -> AttachReport:
    """Attach to a collection."""
    settings = AttachSettings(batch_tokens=300)
    with target.open() as client:
        model = ReadyModel(DIM, texts_per_second=texts_per_second)
        return attach_vector(client, target.collection, model, settings=settings)


def look(client: QdrantClient, name: str, before: Contents) -> tuple[int, int]:
    """Count the points with our vector and its hash, and those of the users that are missing or changed."""
    attached, theirs = 0, {}
    for key, (payload, vectors) in read_contents(client, name).items():
        hashes = (payload.get(CARE_KEY) or {}).get("vectors") or {}
        attached += VECTOR_NAME in vectors and VECTOR_NAME in hashes
        theirs[key] = (
            {field: value for field, value in payload.items() if field != CARE_KEY},
            {vector: row for vector, row in vectors.items() if vector != VECTOR_NAME},
        )
    return attached, distance(theirs, before)


def wrong_vectors(client: QdrantClient, name: str) -> int:
    """Count the points without the vector of their text."""
    contents = list(read_contents(client, name).values())
    wanted = ReadyModel(DIM).document_encoder.encode([str(payload["text"]) for payload, _ in contents])
    found = (vectors.get(VECTOR_NAME) for _, vectors in contents)
    return sum(row is None or not np.allclose(row, want, atol=1e-5) for row, want in zip(found, wanted, strict=True))


def _verify_attach(target: Target, before: Contents) -> tuple[Counts, Counts]:
    with target.open() as client:
        attached, changed = look(client, target.collection, before)
    report = attach_once(target)
    with target.open() as client:
        changed += look(client, target.collection, before)[1]
        violations = {
            "encoded_again": max(0, report.encoded - (len(before) - attached)),
            "wrong_vectors": wrong_vectors(client, target.collection),
            "changed": changed,
        }
    return {"points": len(before), "attached": attached}, violations


def _verify_detach(target: Target, before: Contents) -> tuple[Counts, Counts]:
    with target.open() as client:
        left, changed = look(client, target.collection, before)
        is_over = not Collection(client, target.collection).schema.attached
    if not is_over:
        _detach(target)
    with target.open() as client:
        after = read_contents(client, target.collection)
    # Every point is compared whole: nothing of ours may be left.
    changed += distance(after, before)
    return {"points": len(before), "detached": len(before) - left}, {"changed": changed}


def _detach(target: Target) -> None:
    with target.open() as client:
        detach_vector(client, target.collection, VECTOR_NAME)


def _kind(url: str | None) -> str:
    return "embedded" if url is None else "server"
