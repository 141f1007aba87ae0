"""Closed-loop load: each client waits for its answer before it sends the next query."""

import asyncio
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding

TURNS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """One stack under a number of concurrent clients."""

    stack: str
    clients: int
    queries: int
    queries_per_second: float
    cpu_ms_per_query: float
    p50_ms: float
    p99_ms: float


def measure_loads(
    stacks: Mapping[str, BaseEmbedding], queries: Sequence[str], clients: Sequence[int], seconds: float, seed: int = 0
) -> list[Load]:
    """Measure each stack with each number of clients, in short turns, so that other load affects all equally."""
    rng = random.Random(seed)
    jobs = [(name, number) for number in clients for name in stacks]
    turns: dict[tuple[str, int], list[_Turn]] = {job: [] for job in jobs}
    for _ in range(TURNS + 1):
        for name, number in rng.sample(jobs, len(jobs)):
            turns[name, number].append(_take_turn(stacks[name], queries, number, seconds / TURNS))
    return [_summary(name, number, turns[name, number][1:]) for name, number in jobs]


@dataclass(frozen=True, slots=True)
class _Turn:
    took: list[float]
    elapsed: float
    cpu: float


def _take_turn(embedding: BaseEmbedding, queries: Sequence[str], clients: int, seconds: float) -> _Turn:
    began_cpu = time.process_time()
    took, elapsed = asyncio.run(_closed_loop(embedding, queries, clients, seconds))
    return _Turn(took, elapsed, time.process_time() - began_cpu)


def _summary(stack: str, clients: int, turns: Sequence[_Turn]) -> Load:
    took = np.concatenate([turn.took for turn in turns]) * 1e3
    p50, p99 = np.percentile(took, [50, 99])
    return Load(
        stack=stack,
        clients=clients,
        queries=len(took),
        queries_per_second=len(took) / sum(turn.elapsed for turn in turns),
        cpu_ms_per_query=sum(turn.cpu for turn in turns) / len(took) * 1e3,
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
