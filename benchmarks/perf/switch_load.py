"""Queries while `care switch` adds a vector to a large collection and moves the readers, and other programs write.

A program asks in a steady rhythm with both models at hand, another one writes points without vectors; the model sleeps
for no text, so that the server has as much to do as it ever can.
"""

import multiprocessing
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import pairwise
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.retriever import Retriever
from care_qdrant.switch.switch import retire_vector, switch_collection, undo_switch
from care_qdrant.types import TermVector, Vectors
from care_qdrant.vectors.attach import attach_vector
from tests.reliability.ready_model import SENTENCES, ReadyModel

from .measured import output_option, save_measured

if TYPE_CHECKING:
    from care_qdrant.model.care_model import CareModel

COLLECTION = "articles"
BATCH = 1_000
_ROWS = 4_096
_SPAWN = multiprocessing.get_context("spawn")


class LoadModel(ReadyModel):
    """A model without weights: the vector of a text is that of its beginning, moved a little."""

    alpha, term_weights_digest = 1.0, None

    def __init__(self, name: str, dim: int) -> None:
        super().__init__(dim)
        self.name, self._dim = name, dim
        rows = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(2, _ROWS, dim)).astype(np.float32)
        self._rows = rows
        self.document_encoder.encode = self.encode_query  # type: ignore[method-assign]

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


def read(
    url: str,
    dim: int,
    rate: float,
    points: int,
    begun: Event,
    stop: Event,
    seen: "Queue[list[tuple[float, float, int]]]",
) -> None:
    """Search stored texts in a steady rhythm; report the time, the seconds and the outcome of each query."""
    random, rows = np.random.default_rng(0), []
    old, new = (cast("CareModel", LoadModel(name, dim)) for name in ("before", "after"))
    with open_client(url=url) as client:
        retriever = Retriever(client, COLLECTION, old, mode="dense", other_models=[new])
        next_at = time.perf_counter()
        while not stop.is_set():
            number = int(random.integers(points))
            at, began = time.time(), time.perf_counter()
            try:
                [hits] = retriever.search([text_of(number)], top_k=10)
                outcome = int(bool(hits) and hits[0].point_id == str(number))
            except Exception:  # counted, whatever it is
                outcome = -1
            begun.set()
            rows.append((at, time.perf_counter() - began, outcome))
            next_at = max(next_at + 1 / rate, time.perf_counter())
            time.sleep(max(0.0, next_at - time.perf_counter()))
    seen.put(rows)


def write(url: str, rate: float, points: int, stop: Event) -> None:
    """Add points without vectors in a steady rhythm, ten at a time."""
    number = points
    with open_client(url=url) as client:
        while not stop.is_set():
            rows = [
                models.PointStruct(id=n, vector={}, payload={"text": text_of(n)}) for n in range(number, number + 10)
            ]
            client.upsert(COLLECTION, rows, wait=False)
            number += 10
            time.sleep(10 / rate)


def phases_of(rows: Sequence[tuple[float, float, int]], marks: Sequence[tuple[str, float]]) -> list[Phase]:
    """Return the figures of the queries between each mark and the next."""
    found = []
    for (name, start), (_, end) in pairwise(marks):
        those = [row for row in rows if start <= row[0] < end]
        seconds = [row[1] for row in those] or [0.0]
        p50, p95 = (round(1_000 * float(value), 1) for value in np.quantile(seconds, [0.5, 0.95]))
        own, failed = sum(row[2] == 1 for row in those), sum(row[2] < 0 for row in those)
        first = round(own / max(1, len(those) - failed), 4)
        found.append(Phase(name, round(end - start, 1), len(those), failed, p50, p95, first))
        click.echo(str(found[-1]), err=True)
    return found


@click.command()
@click.option("--points", type=click.IntRange(1_000), default=200_000, show_default=True, help="Points at the start.")
@click.option("--dim", type=click.IntRange(1), default=384, show_default=True, help="Length of the vectors.")
@click.option("--queries", type=click.FloatRange(1), default=50.0, show_default=True, help="Queries a second.")
@click.option("--writes", type=click.FloatRange(1), default=100.0, show_default=True, help="New points a second.")
@click.option("--calm", type=click.FloatRange(1), default=30.0, show_default=True, help="Seconds before and after.")
@click.option("--url", envvar="QDRANT_URL", show_envvar=True, required=True, help="URL of a Qdrant server.")
@output_option
def main(points: int, dim: int, queries: float, writes: float, calm: float, url: str, output: Path) -> None:
    """Measure queries before, during and after a switch, a rollback, and the end of the old vector.

    \b
    Example:
      python -m benchmarks.perf.switch_load --output benchmarks/results/switch-load.json
    """
    before, after = LoadModel("before", dim), LoadModel("after", dim)
    begun, stop, seen, marks = _SPAWN.Event(), _SPAWN.Event(), _SPAWN.Queue(), []

    def mark(name: str) -> None:
        marks.append((name, time.time()))

    with open_client(url=url) as client:
        fill(client, points, before)
        await_green(client)
        others = [
            _SPAWN.Process(target=read, args=(url, dim, queries, points, begun, stop, seen)),
            _SPAWN.Process(target=write, args=(url, writes, points, stop)),
        ]
        for other in others:
            other.start()
        begun.wait()
        steps: list[tuple[str, Callable[[], object]]] = [
            ("before", lambda: time.sleep(calm)),
            ("switch", lambda: switch_collection(client, COLLECTION, after, before, accept="a measurement")),
            ("after the switch, while the graph is built", lambda: await_green(client)),
            ("after", lambda: time.sleep(calm)),
            ("rolled back", lambda: [undo_switch(client, COLLECTION), time.sleep(calm)]),
            ("forth again", lambda: [undo_switch(client, COLLECTION), time.sleep(calm)]),
            ("complete", lambda: switch_collection(client, COLLECTION, after, before)),
        ]
        for name, step in steps:
            mark(name)
            step()
        mark("end")
        stop.set()
        rows = seen.get()
        for other in others:
            other.join()
        switch_collection(client, COLLECTION, after, before)
        retire_vector(client, COLLECTION, grace_seconds=0)
        total = client.count(COLLECTION, exact=True).count
        complete = client.count(
            COLLECTION, models.Filter(must=[models.HasVectorCondition(has_vector="after")]), exact=True
        ).count
        client.delete_collection(COLLECTION)
    found = phases_of(rows, marks)
    save_measured(
        output,
        {
            "points": points,
            "dim": dim,
            "queries_per_second": queries,
            "writes_per_second": writes,
            "points_at_the_end": total,
            "of_them_with_the_new_vector": complete,
            "phases": [asdict(phase) for phase in found],
        },
    )


if __name__ == "__main__":
    main()
