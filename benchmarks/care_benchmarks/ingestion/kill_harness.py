"""Kills ingestions at random moments and checks that one more run makes everything right.

A trial ingests a corpus in a process of its own, sends it SIGKILL a random moment after a random number of its points
were acknowledged, looks at what is stored, runs the ingestion once more and looks again:

- every point whose write was acknowledged is stored;
- what was stored is not encoded again;
- afterwards each chunk of each document is there exactly once, with its text and its vector.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from qdrant_client import QdrantClient

from care_benchmarks.ingestion.fake import ReadyModel
from care_benchmarks.ingestion.processes import start_worker
from care_benchmarks.ingestion.worker import open_target
from care_qdrant.corpus.chunking import cut_rows
from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import Row
from care_qdrant.ingestion.run import ingest
from care_qdrant.types import Chunk, Vectors

TargetKind = Literal["embedded", "server"]
JITTER_SECONDS = 0.1
POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Trial:
    """One killed ingestion and the run that finished it."""

    target: TargetKind
    killed_after_points: int
    """Of acknowledged points: the kill was aimed there, and came up to `JITTER_SECONDS` later."""
    was_killed: bool
    """False where it was done before its time came."""
    acknowledged: int
    """Points that the killed process knew to be stored."""
    stored: int
    """Points that were stored after the kill."""
    lost: int
    """Acknowledged points that were not."""
    encoded_again: int
    """Stored points that the second run encoded all the same."""
    wrong: int
    """Points that are missing, unexpected, or have another text or vector after the second run."""

    @property
    def is_good(self) -> bool:
        """Say whether nothing was lost, repeated or wrong."""
        return not (self.lost or self.encoded_again or self.wrong)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all trials share."""

    corpus: Path
    dim: int
    expected: dict[str, tuple[str, Vectors]]
    """Text and vector of each point, by id."""


def make_bench(corpus: Path, dim: int) -> Bench:
    """Work out what has to be there in the end, without a database."""
    encoder = ReadyModel(dim).document_encoder
    chunks: list[Chunk] = []
    with Corpus(corpus) as rows:
        for cut in cut_rows([row for row in rows if isinstance(row, Row)], encoder, "split"):
            chunks += [sized.chunk for sized in cut] if isinstance(cut, list) else []
    vectors = encoder.encode([chunk.embedded_text for chunk in chunks])
    return Bench(corpus, dim, {c.point_id: (c.text, vector) for c, vector in zip(chunks, vectors, strict=True)})


def run_trials(
    bench: Bench, kind: TargetKind, trials: int, scratch: Path, url: str = "", seed: int = 0
) -> Iterator[Trial]:
    """Give one trial after the other.

    Args:
        bench: What to ingest.
        kind: An embedded database of its own for each trial, or a collection of its own on the server.
        trials: How many.
        scratch: An empty folder.
        url: Of the server.
        seed: Of the moments.
    """
    rng = random.Random(seed)
    for number in range(trials):
        target = url if kind == "server" else str(scratch / f"trial-{number}")
        log = scratch / f"acknowledged-{kind}-{number}"
        log.touch()
        # One in ten is aimed at the time before the first point, when the collection is made.
        aim = max(0, rng.randrange(-len(bench.expected) // 9, len(bench.expected)))
        was_killed = _kill(bench, target, f"trial-{number}", log, aim, rng.uniform(0, JITTER_SECONDS))
        yield _look(bench, kind, target, f"trial-{number}", log, aim, was_killed)


def _kill(bench: Bench, target: str, collection: str, log: Path, aim: int, jitter_seconds: float) -> bool:
    """Start an ingestion and kill it; False if it was done before."""
    with start_worker(bench.corpus, collection, target, dim=bench.dim, log=log) as process:
        next(iter(process.stdout or ()), None)
        while process.poll() is None and len(_acknowledged(log)) < aim:
            time.sleep(POLL_SECONDS)
        time.sleep(jitter_seconds)
        was_killed = process.poll() is None
        process.kill()
    return was_killed


def _acknowledged(log: Path) -> set[str]:
    """Read the ids of acknowledged points; an unfinished last line is none."""
    return set(log.read_text().split("\n")[:-1])


def _look(bench: Bench, kind: TargetKind, target: str, collection: str, log: Path, aim: int, was_killed: bool) -> Trial:
    """Compare what is stored after a kill, and after one more run, with what should be."""
    with open_target(target) as client:
        acknowledged, stored = _acknowledged(log), set(_stored(client, collection))
        report = ingest(bench.corpus, ReadyModel(bench.dim), client, collection)
        return Trial(
            target=kind,
            killed_after_points=aim,
            was_killed=was_killed,
            acknowledged=len(acknowledged),
            stored=len(stored),
            lost=len(acknowledged - stored),
            # A server may still have been writing when we looked, so fewer than the rest is right, too.
            encoded_again=max(0, report.encoded - (len(bench.expected) - len(stored))),
            wrong=_wrong_points(bench, _stored(client, collection)),
        )


def _stored(client: QdrantClient, collection: str) -> dict[str, tuple[str, Vectors]]:
    """Give text and vector of every point, by id."""
    found: dict[str, tuple[str, Vectors]] = {}
    if not client.collection_exists(collection):
        return found
    records, _ = client.scroll(collection, limit=1_000_000, with_payload=["text"], with_vectors=True)
    for record in records:
        vector = record.vector if isinstance(record.vector, dict) else {}
        row = np.asarray(next(iter(vector.values()), []), dtype=np.float32)
        found[str(record.id)] = (str((record.payload or {}).get("text")), row)
    return found


def _wrong_points(bench: Bench, found: dict[str, tuple[str, Vectors]]) -> int:
    wrong = len(found.keys() ^ bench.expected.keys())
    for point, (text, vector) in bench.expected.items():
        if point in found:
            found_text, row = found[point]
            wrong += found_text != text or row.shape != vector.shape or not np.allclose(row, vector, atol=1e-6)
    return wrong
