"""Ingestions that are killed, or whose server goes away: what was acknowledged is stored, nothing encoded twice."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.corpus.chunking import cut_documents
from care_qdrant.corpus.files import Corpus
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.progress import Progress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Chunk, Document, Vectors
from tests.reliability.processes import QdrantServer
from tests.reliability.ready_model import ReadyModel
from tests.reliability.trials import CLIENT_KILLED, Attempt, Counts, Fault, Trial, kill_trials
from tests.standin import StandIn

TEXTS_PER_SECOND = 400.0
"""Speed of the encoder of the killed run, which sleeps: slow enough that most moments fall between writes."""
BATCH_TOKENS = 1_000

Stored = dict[str, tuple[str, Vectors]]
"""Point id → text and vector."""


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus, and the points that it must become."""

    corpus: Path
    dim: int
    expected: Stored


@dataclass(frozen=True, slots=True)
class Target:
    """A collection of a server or of an embedded database."""

    address: str
    """URL of a server, or folder of the embedded database."""
    collection: str

    def open(self) -> Any:
        """Open the database for the length of a ``with`` block."""
        is_url = self.address.startswith("http")
        return open_client(url=self.address) if is_url else open_client(path=Path(self.address))


def make_source(corpus: Path, dim: int) -> Source:
    """Compute the expected points of a corpus without a database."""
    encoder = ReadyModel(dim).document_encoder
    chunks: list[Chunk] = []
    with Corpus(corpus) as rows:
        for cut in cut_documents([row for row in rows if isinstance(row, Document)], encoder, "split"):
            chunks += cut if isinstance(cut, list) else []
    vectors = encoder.encode([chunk.embedded_text for chunk in chunks])
    return Source(corpus, dim, {c.point_id: (c.text, vector) for c, vector in zip(chunks, vectors, strict=True)})


def ingest_trials(
    source: Source, trials: int, scratch: Path, url: str | None, seed: int, fault: Fault = CLIENT_KILLED
) -> Iterator[Trial]:
    """Kill ingestions, each into a collection of its own; without a URL, into embedded databases."""
    kind = "embedded" if url is None else "server"

    def prepare(name: str) -> Attempt:
        target = Target(url or str(scratch / f"ingest-{name}"), f"ingest-{name}")
        log = scratch / f"acknowledged-{kind}-{name}"
        log.touch()
        return Attempt(partial(_ingest, source.corpus, source.dim, target, log), partial(_verify, source, target, log))

    return kill_trials(f"ingest, {kind}", prepare, trials, seed, fault)


def outage_trial(source: Source, documents: int, gone_seconds: float) -> Trial:
    """Ingest into a server that refuses connections for a while from half of the corpus on, with default retries."""
    stored_when_gone: list[int] = []
    with StandIn() as server, open_client(url=server.url) as client:

        def leave_halfway(progress: Progress) -> None:
            if stored_when_gone or progress.encoded <= documents / 2:
                return
            # Writing lags behind encoding: the server leaves once it holds something.
            if stored := client.count("corpus").count:
                stored_when_gone.append(stored)
                server.go_away()
                threading.Timer(gone_seconds, server.come_back).start()

        report = ingest(source.corpus, ReadyModel(source.dim), client, "corpus", on_progress=leave_halfway)
        stored = _stored(client, "corpus")
    observed = {"seconds": round(report.seconds), "points": report.points, "stored_when_gone": sum(stored_when_gone)}
    violations = {
        "missing": max(0, report.chunks - report.points),
        "wrong": _wrong_points(source, stored),
    }
    return Trial("outage during ingest", 0.0, bool(stored_when_gone), observed, violations)


def full_disk_trial(source: Source, server: QdrantServer) -> Trial:
    """Ingest into a server whose disk is full from a third of the corpus on, until the client says that it waits."""
    filler, third = server.disk / "filler", len(source.expected) / 3
    waits: list[str] = []

    class _Freeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waits.append(record.getMessage())
            filler.unlink(missing_ok=True)

    def fill(progress: Progress) -> None:
        if progress.stored > third and not waits and not filler.exists():
            with filler.open("wb") as file, suppress(OSError):  # the disk is full, as it should be
                while True:
                    file.write(bytes(2**20))

    outages = logging.getLogger("care_qdrant.qdrant.retry")
    outages.addHandler(handler := _Freeing())
    try:
        with open_client(url=server.url) as client:
            model = ReadyModel(source.dim, texts_per_second=TEXTS_PER_SECOND)
            report = ingest(source.corpus, model, client, "corpus", on_progress=fill)
            stored = _stored(client, "corpus")
    finally:
        outages.removeHandler(handler)
    is_full = any("No space left" in wait for wait in waits)
    violations = {"missing": max(0, report.chunks - report.points), "wrong": _wrong_points(source, stored)}
    return Trial("full disk during ingest", 0.0, is_full, {"points": report.points}, violations)


def _ingest(corpus: Path, dim: int, target: Target, log: Path) -> None:
    with target.open() as client:
        _log_acknowledged(log)
        model, settings = ReadyModel(dim, texts_per_second=TEXTS_PER_SECOND), IngestSettings(batch_tokens=BATCH_TOKENS)
        ingest(corpus, model, client, target.collection, settings=settings)


def _log_acknowledged(path: Path) -> None:
    """Let collections of this process write the ids of points to a file as soon as Qdrant has acknowledged them."""
    upsert = Collection.upsert
    log = path.open("a", encoding="utf-8")

    def logged(collection: Collection, points: Sequence[models.PointStruct]) -> None:
        upsert(collection, points)
        log.write("".join(f"{point.id}\n" for point in points))
        log.flush()

    Collection.upsert = logged  # type: ignore[method-assign]


def _verify(source: Source, target: Target, log: Path) -> tuple[Counts, Counts]:
    """Compare what is stored after a kill, and after one more run, with what must be stored."""
    # An unfinished last line is no id.
    acknowledged = set(log.read_text().split("\n")[:-1])
    with target.open() as client:
        stored = _stored(client, target.collection).keys()
        report = ingest(source.corpus, ReadyModel(source.dim), client, target.collection)
        after = _stored(client, target.collection)
    violations = {
        "lost": len(acknowledged - stored),
        # A server may still have been writing when we looked, so fewer than the rest is right as well.
        "encoded_again": max(0, report.encoded - (len(source.expected) - len(stored))),
        "wrong": _wrong_points(source, after),
    }
    return {"acknowledged": len(acknowledged), "stored": len(stored)}, violations


def _stored(client: QdrantClient, collection: str) -> Stored:
    found: Stored = {}
    if not client.collection_exists(collection):
        return found
    records, _ = client.scroll(collection, limit=1_000_000, with_payload=["text"], with_vectors=True)
    for record in records:
        vector = record.vector if isinstance(record.vector, dict) else {}
        row = np.asarray(next(iter(vector.values()), []), dtype=np.float32)
        found[str(record.id)] = (str((record.payload or {}).get("text")), row)
    return found


def _wrong_points(source: Source, found: Stored) -> int:
    wrong = len(found.keys() ^ source.expected.keys())
    for point, (text, vector) in source.expected.items():
        if point in found:
            found_text, row = found[point]
            wrong += found_text != text or row.shape != vector.shape or not np.allclose(row, vector, atol=1e-6)
    return wrong
