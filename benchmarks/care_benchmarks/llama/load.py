"""Many queries at once: clients that each wait for their answer before they ask again."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding


@dataclass(frozen=True, slots=True)
class Load:
    """A stack under ``clients`` concurrent clients."""

    stack: str
    clients: int
    queries: int
    queries_per_second: float
    cpu_ms_per_query: float
    p50_ms: float
    p99_ms: float


def measure_load(stack: str, embedding: BaseEmbedding, queries: Sequence[str], clients: int, seconds: float) -> Load:
    """Keep ``clients`` coroutines busy for so long; the answers to the first rounds of each are not counted."""
    asyncio.run(_closed_loop(embedding, queries, clients, seconds / 4))
    began_cpu = time.process_time()
    took, elapsed = asyncio.run(_closed_loop(embedding, queries, clients, seconds))
    cpu = time.process_time() - began_cpu
    p50, p99 = np.percentile(np.asarray(took) * 1e3, [50, 99])
    return Load(
        stack=stack,
        clients=clients,
        queries=len(took),
        queries_per_second=len(took) / elapsed,
        cpu_ms_per_query=cpu / len(took) * 1e3,
        p50_ms=float(p50),
        p99_ms=float(p99),
    )


async def _closed_loop(
    embedding: BaseEmbedding, queries: Sequence[str], clients: int, seconds: float
) -> tuple[list[float], float]:
    began, tickets, took = time.perf_counter(), itertools.count(), list[float]()

    async def client() -> None:
        while time.perf_counter() - began < seconds:
            sent = time.perf_counter()
            await embedding.aget_query_embedding(queries[next(tickets) % len(queries)])
            took.append(time.perf_counter() - sent)

    await asyncio.gather(*(client() for _ in range(clients)))
    return took, time.perf_counter() - began
