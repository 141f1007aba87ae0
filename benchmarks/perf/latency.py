"""CPU time of single queries, measured in turn for all stacks, so that load on the machine affects all equally."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llama_index.core.base.embeddings.base import BaseEmbedding

WARM_UP_ROUNDS = 5
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class SingleQuery:
    """One stack with one query at a time."""

    stack: str
    rounds: int
    cpu_ms: float
    """Median CPU time of one query over all threads."""
    wall_ms: float
    times_faster: float
    """Median CPU time of the stock stack divided by this one's."""
    interval: tuple[float, float]
    """95 % interval of the ratio, bootstrapped over rounds."""
    least_cosine: float
    """Smallest cosine between its vectors and those of the stock stack."""
    mean_cosine: float


def measure_single(
    stacks: Mapping[str, BaseEmbedding], stock: str, queries: Sequence[str], rounds: int, seed: int = 0
) -> list[SingleQuery]:
    """Embed a query with every stack, in random order, many times."""
    rng = random.Random(seed)
    cpu: dict[str, list[float]] = {name: [] for name in stacks}
    wall: dict[str, list[float]] = {name: [] for name in stacks}
    vectors: dict[str, list[list[float]]] = {name: [] for name in stacks}
    for number in range(-WARM_UP_ROUNDS, rounds):
        query = queries[number % len(queries)]
        for name in rng.sample(list(stacks), len(stacks)):
            began, began_cpu = time.perf_counter(), time.process_time()
            vector = stacks[name].get_query_embedding(query)
            if number >= 0:
                cpu[name].append((time.process_time() - began_cpu) * 1e3)
                wall[name].append((time.perf_counter() - began) * 1e3)
                vectors[name].append(vector)
    return [_summary(name, stock, rounds, cpu, wall, vectors) for name in stacks]


def _summary(
    name: str,
    stock: str,
    rounds: int,
    cpu: Mapping[str, list[float]],
    wall: Mapping[str, list[float]],
    vectors: Mapping[str, list[list[float]]],
) -> SingleQuery:
    own, base = np.asarray(cpu[name]), np.asarray(cpu[stock])
    cosines = np.sum(np.asarray(vectors[name]) * np.asarray(vectors[stock]), axis=1)
    return SingleQuery(
        stack=name,
        rounds=rounds,
        cpu_ms=float(np.median(own)),
        wall_ms=float(np.median(wall[name])),
        times_faster=float(np.median(base) / np.median(own)),
        interval=_ratio_interval(base, own),
        least_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
    )


def _ratio_interval(base: npt.NDArray[np.float64], own: npt.NDArray[np.float64]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(own), size=(RESAMPLES, len(own)))
    ratios = np.median(base[rows], axis=1) / np.median(own[rows], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)
