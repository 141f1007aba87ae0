"""Queries per second and latency percentiles by number of clients: the x-axis of the paper's Figure 1.

The load is a closed loop: each client sends its next query when it has the answer to the last one. With one client the
figure is the latency of an idle system, with more clients that of a loaded system.
"""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter

from care_benchmarks.results import ColdStart, Latency, LoadPoint, Speed
from care_benchmarks.search import QdrantSearch
from care_benchmarks.tasks import LoadedTask
from care_qdrant.errors import CareError
from care_qdrant.qdrant.connection import is_embedded

T = TypeVar("T")

WARM_UP_QUERIES = 20
WARM_UP_SECONDS = 5.0
"""Time limit of the warm-up, for slow systems."""
BUDGET_SECONDS = 15.0
TOP_K = 10


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """Settings of the speed measurement."""

    clients: tuple[int, ...] = (1, 4, 16)
    samples: int = 200
    """Queries per load, after the warm-up."""
    cold_start: bool = True


def measure_speed(search: QdrantSearch, task: LoadedTask, settings: SpeedSettings, store: Path | None) -> Speed:
    """Measure a system on the index that its accuracy was measured on."""
    queries, system, model = list(task.queries.values()), search.system, search.system.model
    answer, indexed = search.query_path(task.name, task.revision), search.indexed[task.name]
    collection = search.collection(task.name, task.revision)
    encode = find = cold_start = None
    if system.mode == "dense":
        encode = measure_load(lambda query: model.encode_query([query]), queries, 1, settings.samples).latency
        vectors = model.encode_query(queries[: settings.samples]).tolist()
        find = measure_load(
            lambda vector: search.client.query_points(
                collection, query=vector, using=model.name, limit=TOP_K, search_params=search.params
            ),
            vectors,
            1,
            settings.samples,
        ).latency
        if settings.cold_start:
            cold_start = measure_cold_start(system.source, system.precision, queries[0])
    files = None if store is None else (store / "collection" / collection).rglob("*")
    size = None if files is None else sum(file.stat().st_size for file in files if file.is_file())
    where = "embedded Qdrant, exact scan" if is_embedded(search.client) else "Qdrant server"
    return Speed(
        path=f"{answer.description}, {where}, top {TOP_K}",
        warm_up_queries=WARM_UP_QUERIES,
        whole=[measure_load(lambda q: answer(q, TOP_K), queries, n, settings.samples) for n in settings.clients],
        encode=encode,
        search=find,
        cold_start=cold_start,
        documents_per_second=indexed.encoded / indexed.seconds if indexed.encoded == indexed.documents else None,
        index_bytes_per_document=None if size is None else size / indexed.documents,
    )


def measure_load(
    answer: Callable[[T], object],
    queries: Sequence[T],
    concurrency: int,
    samples: int,
    budget_seconds: float = BUDGET_SECONDS,
) -> LoadPoint:
    """Send queries from concurrent clients in a closed loop, after a warm-up that is not counted."""
    began = time.perf_counter()
    for number in range(WARM_UP_QUERIES):
        answer(queries[number % len(queries)])
        if time.perf_counter() - began > WARM_UP_SECONDS:
            break
    tickets, lock, seconds = itertools.count(), threading.Lock(), list[float]()
    began = time.perf_counter()

    def client() -> None:
        while (ticket := next(tickets)) < samples and time.perf_counter() - began < budget_seconds:
            sent = time.perf_counter()
            answer(queries[ticket % len(queries)])
            took = time.perf_counter() - sent
            with lock:
                seconds.append(took)

    with ThreadPoolExecutor(concurrency) as pool:
        for future in [pool.submit(client) for _ in range(concurrency)]:
            future.result()
    return LoadPoint(concurrency, len(seconds) / (time.perf_counter() - began), summarise(seconds))


def summarise(seconds: Sequence[float]) -> Latency:
    """Return mean and percentiles in milliseconds; of the percentiles those that so many calls have."""
    milliseconds = np.asarray(seconds) * 1e3

    def percentile(percent: int) -> float | None:
        return float(np.percentile(milliseconds, percent)) if len(seconds) * (100 - percent) >= 100 else None

    return Latency(
        len(seconds), float(milliseconds.mean()), float(np.median(milliseconds)), percentile(95), percentile(99)
    )


def measure_cold_start(model: str, precision: str, query: str) -> ColdStart:
    """Encode one query in a fresh process."""
    command = [sys.executable, "-m", "care_benchmarks.cold_start", model, precision, query, str(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise CareError(f"cold start of {model}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return TypeAdapter(ColdStart).validate_json(done.stdout)
