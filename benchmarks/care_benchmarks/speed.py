"""Queries per second and latency percentiles against concurrency: what the paper's Figure 1 has on its x-axis.

A closed loop: each of ``concurrency`` clients sends its next query when it has the answer to the last one. So at a
concurrency of 1 the figure is the latency of an idle system, and further on that of a loaded one.
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

import numpy as np
from pydantic import TypeAdapter

from care_benchmarks.cold_start import ColdStart
from care_qdrant.errors import CareError

WARM_UP_QUERIES = 20
WARM_UP_SECONDS = 5.0
"""The warm-up of a slow system ends here."""
BUDGET_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Latency:
    """How long single calls took."""

    samples: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The system under one load."""

    concurrency: int
    queries_per_second: float
    latency: Latency


@dataclass(frozen=True, slots=True)
class Speed:
    """All that was measured of one system's speed."""

    path: str
    """What was timed, in words."""
    warm_up_queries: int
    whole: list[LoadPoint]
    """Text in, hits out."""
    encode: Latency | None
    """Text to vector alone, one at a time; None for BM25."""
    search: Latency | None
    """Vector to hits alone, one at a time; None where it cannot be told apart."""
    cold_start: ColdStart | None
    """A fresh process to its first query vector."""
    documents_per_second: float | None
    """Reading, encoding and writing; None where the index was there already."""
    index_bytes_per_document: float | None
    """On the disk, text and payload included; None on a server."""


def measure_load(
    answer: Callable[[str], object],
    queries: Sequence[str],
    concurrency: int,
    samples: int,
    budget_seconds: float = BUDGET_SECONDS,
) -> LoadPoint:
    """Send queries from ``concurrency`` clients in a closed loop, after a warm-up that is not counted.

    Args:
        answer: Called with one query; from several threads.
        queries: Sent in turn.
        concurrency: Clients.
        samples: Queries to send.
        budget_seconds: No client starts another query after this; a slow system gets fewer samples.
    """
    warm_up(lambda number: answer(queries[number % len(queries)]))
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


def measure_calls(call: Callable[[int], object], samples: int, budget_seconds: float = BUDGET_SECONDS) -> Latency:
    """Time ``call(0)``, ``call(1)``, … one after another, after a warm-up that is not counted."""
    warm_up(call)
    seconds: list[float] = []
    end = time.perf_counter() + budget_seconds
    for number in range(samples):
        began = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - began)
        if began > end:
            break
    return summarise(seconds)


def warm_up(call: Callable[[int], object]) -> None:
    """Call until caches, threads and allocators are in their steady state."""
    began = time.perf_counter()
    for number in range(WARM_UP_QUERIES):
        call(number)
        if time.perf_counter() - began > WARM_UP_SECONDS:
            return


def summarise(seconds: Sequence[float]) -> Latency:
    """Give mean and percentiles in milliseconds."""
    milliseconds = np.asarray(seconds) * 1e3
    p50, p95, p99 = np.percentile(milliseconds, [50, 95, 99])
    return Latency(len(seconds), float(milliseconds.mean()), float(p50), float(p95), float(p99))


def measure_cold_start(model: str, precision: str, query: str) -> ColdStart:
    """Start a fresh process, and let it encode its first query.

    Raises:
        CareError: the process fails.
    """
    command = [sys.executable, "-m", "care_benchmarks.cold_start", model, precision, query, str(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise CareError(f"cold start of {model}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return TypeAdapter(ColdStart).validate_json(done.stdout)
