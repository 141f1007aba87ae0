"""Queries while `care switch` adds a vector to a large collection and moves the readers, and other programs write.

A program asks in a steady rhythm with both models at hand, another one writes points without vectors. Without
``--speed`` the model takes no time, so that the server has as much to do as it ever can.
"""

import math
import multiprocessing
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import pairwise
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import UUID

import click
import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.errors import CareError
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.retriever import Retriever
from care_qdrant.switch.switch import retire_vector, switch_collection, undo_switch
from care_qdrant.types import TermVector, Vectors
from care_qdrant.vectors.attach import attach_vector
from tests.reliability.processes import QdrantServer
from tests.reliability.ready_model import SENTENCES, ReadyModel
from tests.reliability.switching import VICTIMS
from tests.reliability.trials import GONE_SECONDS

from .measured import output_option, save_measured, scratch_option

if TYPE_CHECKING:
    from care_qdrant.model.care_model import CareModel

COLLECTION = "articles"
BATCH = 1_000
LEAST_SCORE = 0.5
"""Below the score of every near point, and above that of every point in a vector of the other model."""
_ROWS = 4_096
_SPAWN = multiprocessing.get_context("spawn")


class LoadModel(ReadyModel):
    """A model without weights: the vector of a text is that of its beginning, moved a little."""

    alpha, term_weights_digest = 1.0, None

    def __init__(self, name: str, dim: int, texts_per_second: float = math.inf) -> None:
        super().__init__(dim)
        self.name, self._dim, self._speed = name, dim, texts_per_second
        rows = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(2, _ROWS, dim)).astype(np.float32)
        self._rows = rows
        self.document_encoder.encode = self.encode_documents  # type: ignore[method-assign]

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the model's contract."""
        return self.contract().fingerprint

    def contract(self) -> VectorContract:
        """Return the contract that the collection stores."""
        return VectorContract(sha256(self.name.encode()).hexdigest(), self.name, self._dim)

    def encode_query(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:  # noqa: ARG002
        """Encode texts into unit vectors: (len(texts), dim)."""
        hashes = np.array([int(sha256(text.encode()).hexdigest()[:12], 16) for text in texts], dtype=np.int64)
        made = self._rows[0][hashes % _ROWS] + 0.7 * self._rows[1][hashes // _ROWS % _ROWS]
        return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), dtype=np.float32)

    def encode_documents(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode documents as queries, and sleep as long as a model of this speed would take."""
        time.sleep(len(texts) / self._speed)
        return self.encode_query(texts, prompt=prompt)

    def query_terms(self, text: str, analyser: Analyser = DEFAULT) -> TermVector:
        """Return the BM25 terms of a query."""
        return bm25.query_vector(text, analyser)


@dataclass(frozen=True, slots=True)
class Phase:
    """The queries of one part of a switch."""

    name: str
    seconds: float
    queries: int
    failed: int
    """Queries without an answer while the server was there."""
    failed_while_the_server_was_gone: int
    mixed: int
    """Queries whose first hit is farther than any point is in the vector of the query's model."""
    p50_ms: float
    p95_ms: float
    found_first: float
    """Fraction of the queries, which are stored texts, whose own point is the first hit."""


def text_of(number: int) -> str:
    """Return the text of a point."""
    return f"第{number}条：{SENTENCES[number % len(SENTENCES)].strip()}"


def fill(client: QdrantClient, points: int, before: LoadModel) -> None:
    """Create the collection, with the vector of the model that readers use first."""
    client.create_collection(COLLECTION, vectors_config={})
    for start in range(0, points, BATCH):
        rows = [
            models.PointStruct(id=number, vector={}, payload={"text": text_of(number)})
            for number in range(start, min(start + BATCH, points))
        ]
        client.upsert(COLLECTION, rows, wait=True)
    attach_vector(client, COLLECTION, before)


def await_green(client: QdrantClient) -> None:
    """Wait until the server has built the graph."""
    while client.get_collection(COLLECTION).status is not models.CollectionStatus.GREEN:
        time.sleep(1)


def ask(url: str, dim: int, rate: float, points: int, log: Path) -> None:
    """Search stored texts in a steady rhythm; log the time, the seconds, the first hit's rightness and its score."""
    random = np.random.default_rng(int(time.time()))
    old, new = (cast("CareModel", LoadModel(name, dim)) for name in ("before", "after"))
    while True:  # until it is killed
        with suppress(CareError), log.open("a") as file, open_client(url=url) as client:
            retriever = Retriever(client, COLLECTION, old, mode="dense", other_models=[new])
            next_at = time.perf_counter()
            while True:
                number = int(random.integers(points))
                at, began = time.time(), time.perf_counter()
                try:
                    [hits] = retriever.search([text_of(number)], top_k=10)
                    outcome, score = int(hits[0].point_id == str(number)), hits[0].score
                except Exception:  # counted, whatever it is
                    outcome, score = -1, 0.0
                file.write(f"{at} {time.perf_counter() - began} {outcome} {score}\n")
                file.flush()
                next_at = max(next_at + 1 / rate, time.perf_counter())
                time.sleep(max(0.0, next_at - time.perf_counter()))


def write(url: str, rate: float, points: int, stop: Event, written: "Queue[int]") -> None:
    """Add points without vectors in a steady rhythm, ten at a time, each until the server has acknowledged it."""
    end, next_at = points, time.monotonic()
    with open_client(url=url) as client:
        while not stop.is_set():
            rows = [models.PointStruct(id=n, vector={}, payload={"text": text_of(n)}) for n in range(end, end + 10)]
            try:
                client.upsert(COLLECTION, rows, wait=True)
                end += 10
            except (ResponseHandlingException, UnexpectedResponse):
                time.sleep(0.1)
            next_at = max(next_at + 10 / rate, time.monotonic() - 1)
            time.sleep(max(0.0, next_at - time.monotonic()))
    written.put(end)


def switch(url: str, dim: int, speed: float = math.inf) -> None:
    """Run the whole switch, as the command does."""
    with open_client(url=url) as client:
        new, old = LoadModel("after", dim, speed), LoadModel("before", dim)
        switch_collection(client, COLLECTION, new, old, accept="a measurement")


def started(target: Callable[..., None], *args: object) -> SpawnProcess:
    """Start a program of the measurement."""
    process = _SPAWN.Process(target=target, args=args)
    process.start()
    return process


@dataclass(slots=True)
class Disturbance:
    """The kills of a switch, each followed by a start of what was killed."""

    server: QdrantServer
    kills: int
    every: float
    """Mean seconds from one kill to the next."""
    restarted: int = 0
    """Times that the switch was started again."""
    moments: list[list[object]] = field(default_factory=list)
    """Who was killed, and seconds since the switch began."""
    gone: list[tuple[float, float]] = field(default_factory=list)
    """Times from which and until which there was no server."""

    def switch(
        self, dim: int, speed: float, reader: SpawnProcess, start_reader: Callable[[], SpawnProcess]
    ) -> SpawnProcess:
        """Run a switch to its end; return the reader that runs then."""
        random, began = np.random.default_rng(0), time.time()
        running = started(switch, self.server.url, dim, speed)
        while True:
            left = len(self.moments) < self.kills
            running.join(random.uniform(0, 2 * self.every) if left else None)
            if running.exitcode == 0:
                return reader
            if running.exitcode is None:
                victim = VICTIMS[len(self.moments) % len(VICTIMS)]
                self.moments.append([victim, round(time.time() - began, 1)])
                click.echo(f"killed: {self.moments[-1]}", err=True)
                if victim == "switch":
                    running.kill()
                    running.join()
                elif victim == "reader":
                    reader.kill()
                    reader.join()
                    reader = start_reader()
                else:
                    at = time.time()
                    self.server.kill()
                    time.sleep(random.uniform(*GONE_SECONDS))
                    self.server.start()
                    self.gone.append((at, time.time() + GONE_SECONDS[1]))
            if running.exitcode is not None:
                self.restarted += 1
                if self.restarted > self.kills:
                    raise click.ClickException("the switch ends by itself, not by a kill: see above")
                running = started(switch, self.server.url, dim, speed)


def differing(client: QdrantClient, total: int, after: LoadModel) -> int:
    """Make the points anew in another collection; return how many differ from those of the switch in any bit."""
    params = models.VectorParams(size=after._dim, distance=models.Distance.COSINE)
    anew = f"{COLLECTION}-anew"
    client.create_collection(anew, vectors_config={"after": params}, hnsw_config=models.HnswConfigDiff(m=0))
    different = 0
    for start in range(0, total, BATCH):
        numbers: list[int | str | UUID] = [*range(start, min(start + BATCH, total))]
        vectors = after.encode_query([text_of(int(number)) for number in numbers])
        client.upsert(anew, models.Batch(ids=numbers, vectors={"after": vectors.tolist()}), wait=True)
        ours, theirs = (
            {record.id: cast("dict[str, list[float]]", record.vector)["after"] for record in page}
            for page in (client.retrieve(name, numbers, with_vectors=["after"]) for name in (COLLECTION, anew))
        )
        different += sum(ours.get(number) != theirs[number] for number in numbers)
    client.delete_collection(anew)
    return different


def phases_of(
    rows: Sequence[Sequence[float]], marks: Sequence[tuple[str, float]], gone: Sequence[tuple[float, float]]
) -> list[Phase]:
    """Return the figures of the queries between each mark and the next."""
    found = []
    for (name, start), (_, end) in pairwise(marks):
        those = [row for row in rows if start <= row[0] < end]
        answered = [row for row in those if row[2] >= 0]
        lost = [row for row in those if row[2] < 0]
        away = sum(any(since <= row[0] + row[1] and row[0] <= until for since, until in gone) for row in lost)
        p50, p95 = (round(1_000 * float(v), 1) for v in np.quantile([row[1] for row in answered] or [0.0], [0.5, 0.95]))
        first = round(sum(row[2] for row in answered) / max(1, len(answered)), 4)
        mixed = sum(row[3] < LEAST_SCORE for row in answered)
        seconds = round(end - start, 1)
        found.append(Phase(name, seconds, len(those), len(lost) - away, away, mixed, p50, p95, first))
        click.echo(str(found[-1]), err=True)
    return found


@click.command()
@click.option("--points", type=click.IntRange(1_000), default=200_000, show_default=True, help="Points at the start.")
@click.option("--dim", type=click.IntRange(1), default=384, show_default=True, help="Length of the vectors.")
@click.option("--queries", type=click.FloatRange(1), default=50.0, show_default=True, help="Queries a second.")
@click.option("--writes", type=click.FloatRange(1), default=100.0, show_default=True, help="New points a second.")
@click.option("--speed", type=click.FloatRange(1), default=math.inf, help="Texts a second that the new model encodes.")
@click.option("--calm", type=click.FloatRange(1), default=30.0, show_default=True, help="Seconds before and after.")
@click.option("--kills", type=click.IntRange(0), default=0, show_default=True, help="Kills of switch, reader, server.")
@click.option("--kill-every", type=click.FloatRange(0), default=60.0, show_default=True, help="Mean seconds between.")
@click.option("--binary", envvar="QDRANT_BINARY", show_envvar=True, required=True, help="Program of a Qdrant server.")
@scratch_option
@output_option
def main(
    points: int,
    dim: int,
    queries: float,
    writes: float,
    speed: float,
    calm: float,
    kills: int,
    kill_every: float,
    binary: str,
    scratch: Path | None,
    output: Path,
) -> None:
    """Measure queries before, during and after a switch, a rollback, and the end of the old vector.

    \b
    Example:
      python -m benchmarks.perf.switch_load --output benchmarks/results/switch-load.json
      python -m benchmarks.perf.switch_load --kills 20 --output benchmarks/results/switch-load-kills.json
    """
    before, after = LoadModel("before", dim), LoadModel("after", dim)
    stop, written, marks = _SPAWN.Event(), _SPAWN.Queue(), []

    def mark(name: str) -> None:
        marks.append((name, time.time()))

    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        QdrantServer(binary, Path(folder)) as server,
        open_client(url=server.url) as client,
    ):
        log, disturbance = Path(folder) / "queries", Disturbance(server, kills, kill_every)
        fill(client, points, before)
        await_green(client)

        def start_reader() -> SpawnProcess:
            return started(ask, server.url, dim, queries, points, log)

        reader = start_reader()
        writer = started(write, server.url, writes, points, stop, written)
        while not log.exists() or not log.read_text():
            time.sleep(0.1)
        mark("before")
        time.sleep(calm)
        mark("switch")
        reader = disturbance.switch(dim, speed, reader, start_reader)
        mark("after the switch, while the graph is built")
        await_green(client)
        mark("after")
        time.sleep(calm)
        for name in ("rolled back", "forth again"):
            mark(name)
            undo_switch(client, COLLECTION)
            time.sleep(calm)
        mark("complete")
        switch_collection(client, COLLECTION, after, before)
        mark("end")
        stop.set()
        expected = written.get()
        writer.join()
        reader.kill()
        reader.join()
        switch_collection(client, COLLECTION, after, before)
        retire_vector(client, COLLECTION, grace_seconds=0)
        total = client.count(COLLECTION, exact=True).count
        has = models.Filter(must=[models.HasVectorCondition(has_vector="after")])
        complete = client.count(COLLECTION, has, exact=True).count
        different = differing(client, expected, after)
        rows = [[float(value) for value in line.split()] for line in log.read_text().splitlines()]
    found = phases_of([row for row in rows if len(row) == 4], marks, disturbance.gone)
    save_measured(
        output,
        {
            "points": points,
            "dim": dim,
            "queries_per_second": queries,
            "writes_per_second": writes,
            "texts_per_second": None if math.isinf(speed) else speed,
            "kills": disturbance.moments,
            "switch_started_again": disturbance.restarted,
            "points_acknowledged": expected,
            "points_at_the_end": total,
            "of_them_with_the_new_vector": complete,
            "different_from_points_made_anew": different,
            "phases": [asdict(phase) for phase in found],
        },
    )


if __name__ == "__main__":
    main()
