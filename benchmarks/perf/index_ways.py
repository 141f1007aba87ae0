"""One way to hold vectors on a server: what it takes to build, in memory and on disk, and what its searches find."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle, takewhile
from pathlib import Path

from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import storage_settings
from care_qdrant.qdrant.quantization import Quantization
from care_qdrant.search.tuning import OVERSAMPLING, Rescoring, record_rescoring
from care_qdrant.types import Vectors
from tests.reliability.processes import QdrantServer

from .memory_group import memory_group
from .own_server import (
    COLLECTION,
    VECTOR,
    Build,
    Found,
    Graph,
    Memory,
    build,
    connected,
    forget_cached_pages,
    memory,
    page_faults,
    search,
    storage_bytes,
    upload,
    wait_until_green,
)

HNSW_EF = (128, 256, 512)
FIRST = 20
"""Queries that are timed after a restart before the others."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to hold the vectors; a quantised copy is always in memory."""

    m: int = 16
    quantization: Quantization | None = None
    datatype: models.Datatype | None = None
    on_disk: bool = False
    since: tuple[int, ...] = (1, 18)
    """Version of the server that knows it."""


WAYS = {
    "float32": Way(),
    "float32, m 32": Way(m=32),
    "float16": Way(datatype=models.Datatype.FLOAT16),
    "turbo4, no originals": Way(datatype=models.Datatype.TURBO4, since=(1, 19)),
    "turbo8, no originals": Way(datatype=models.Datatype.TURBO8, since=(1, 20)),
    "turbo16, no originals": Way(datatype=models.Datatype.TURBO16, since=(1, 20)),
    "int8": Way(quantization="int8"),
    "product": Way(quantization="product"),
    "binary": Way(quantization="binary"),
    "turbo": Way(quantization="turbo"),
    "float32 on disk": Way(on_disk=True),
    "int8, originals on disk": Way(quantization="int8", on_disk=True),
    "turbo, originals on disk": Way(quantization="turbo", on_disk=True),
    "binary, originals on disk": Way(quantization="binary", on_disk=True),
}


@dataclass(frozen=True, slots=True)
class Restart:
    """A server that was killed and started again, with none of its files in the page cache."""

    limit_mib: int | None
    """Limit of its memory and of the pages of its files that stay cached; None is no limit."""
    ready_seconds: float
    memory: Memory
    """Memory at the time when it answers."""
    first_ms: list[float]
    """Times of the first queries, by the default parameters."""
    queries: Found
    page_faults_per_query: float
    """Number of times that a later query waited for the disk, on average."""
    memory_in_use: Memory


@dataclass(frozen=True, slots=True)
class Measured:
    """One way."""

    points: int
    build: Build
    memory: Memory
    storage_bytes_per_point: float
    """Vectors, quantised vectors, graph and ids, without payload."""
    log_mib: float
    """Size of the write-ahead log, which does not grow with the collection."""
    recorded: Rescoring | None
    """Search parameters that ingestion would record; None where nothing is quantised."""
    searches: dict[str, Found]
    restarts: list[Restart]


def graph_of(client: QdrantClient, way: Way, dim: int) -> Graph:
    """Return how the collection is created."""
    held = storage_settings(Collection(client, COLLECTION), way.quantization, on_disk=way.on_disk)
    quantization = held.pop("quantization_config", None)
    params = models.VectorParams(
        size=dim,
        distance=models.Distance.COSINE,
        datatype=way.datatype,
        hnsw_config=models.HnswConfigDiff(m=way.m),
        **held,
    )
    return Graph(params, quantization)


def measure_way(
    binary: str,
    scratch: Path | None,
    way: Way,
    rows: Vectors,
    queries: Vectors,
    exact: Sequence[set[int]],
    memory_mib: int | None,
) -> Measured:
    """Build one collection on a server of its own, search it, and start the server again."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        with QdrantServer(binary, Path(folder)) as server, connected(server) as client:
            built = build(server, client, graph_of(client, way, rows.shape[1]), rows)
            used, (data, log) = memory(server), storage_bytes(server)
            recorded = record_rescoring(Collection(client, COLLECTION), VECTOR)
            found = dict(_searches(server, client, way, queries, exact))
        limits = [None, memory_mib] if way.on_disk and memory_mib else [None]
        restarts = [_restart(binary, Path(folder), limit, queries, exact) for limit in limits]
    per_point = round(data / len(rows), 1)
    return Measured(len(rows), built, used, per_point, round(log / 2**20, 1), recorded, found, restarts)


def _searches(
    server: QdrantServer, client: QdrantClient, way: Way, queries: Vectors, exact: Sequence[set[int]]
) -> Iterator[tuple[str, Found]]:
    search(server, client, queries, exact)
    yield "default", search(server, client, queries, exact)
    for ef in HNSW_EF:
        yield f"ef {ef}", search(server, client, queries, exact, models.SearchParams(hnsw_ef=ef))
    if way.quantization is None:
        return
    for oversampling in (None, *OVERSAMPLING):
        quantized = models.QuantizationSearchParams(rescore=oversampling is not None, oversampling=oversampling)
        name = "not rescored" if oversampling is None else f"oversampling {oversampling:g}"
        yield name, search(server, client, queries, exact, models.SearchParams(quantization=quantized))


def _restart(binary: str, folder: Path, limit_mib: int | None, queries: Vectors, exact: Sequence[set[int]]) -> Restart:
    forget_cached_pages(folder)
    with ExitStack() as stack:
        prefix: Sequence[str] = () if limit_mib is None else stack.enter_context(memory_group(limit_mib))
        start = time.perf_counter()
        server = stack.enter_context(QdrantServer(binary, folder, prefix=prefix))
        client = stack.enter_context(connected(server))
        ready, used = time.perf_counter() - start, memory(server)
        first = [search(server, client, queries[n : n + 1], exact[n : n + 1]).p50_ms for n in range(FIRST)]
        wait_until_green(client)
        faults = page_faults(server)
        found = search(server, client, queries, exact)
        faults = page_faults(server) - faults
        return Restart(limit_mib, round(ready, 2), used, first, found, round(faults / len(queries), 2), memory(server))


def measure_loading(binary: str, scratch: Path | None, rows: Vectors, *, deferred: bool) -> Build:
    """Load float32 vectors on a server of their own, and build the graph at the end or meanwhile."""
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        QdrantServer(binary, Path(folder)) as server,
        connected(server) as client,
    ):
        graph = replace(graph_of(client, WAYS["float32"], rows.shape[1]), deferred=deferred)
        return build(server, client, graph, rows)


@dataclass(frozen=True, slots=True)
class Beside:
    """Searches of a collection that is at rest, is loaded, and builds its graph."""

    points: int
    """Number of points that are in the graph before; as many again are loaded."""
    at_rest: Found
    while_loaded: Found
    while_built: Found
    """After the last point came, until nothing has been left to optimize for `REST_SECONDS`."""
    load_seconds: float
    load_seconds_without_searches: float


def measure_beside(
    binary: str, scratch: Path | None, rows: Vectors, queries: Vectors, exact: Sequence[set[int]]
) -> Beside:
    """Search a collection, one query after the other, while its size is doubled."""
    half, seconds = len(rows) // 2, []
    for is_searched in (False, True):
        with (
            tempfile.TemporaryDirectory(dir=scratch) as folder,
            QdrantServer(binary, Path(folder)) as server,
            connected(server) as client,
            connected(server) as writer,
            ThreadPoolExecutor(1) as pool,
        ):
            build(server, client, graph_of(client, WAYS["float32"], rows.shape[1]), rows[:half])
            at_rest = search(server, client, queries, exact)
            start = time.perf_counter()
            load = pool.submit(upload, writer, rows[half:], first=half)
            if is_searched:
                while_loaded = search(server, client, _until(load.done, queries))
            load.result()
            seconds.append(round(time.perf_counter() - start, 2))
            if is_searched:
                built = pool.submit(wait_until_green, writer)
                while_built = search(server, client, _until(built.done, queries))
                built.result()
    return Beside(half, at_rest, while_loaded, while_built, *reversed(seconds))


def _until(is_over: Callable[[], bool], queries: Vectors) -> Iterator[Vectors]:
    """Repeat the queries until something is over."""
    return takewhile(lambda _: not is_over(), cycle(queries))
