"""The cost of a server program: CPU time, memory, storage; and one collection of ready vectors on it."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import psutil
from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Vectors
from tests.reliability.processes import QdrantServer

from .exact import recall

VECTOR = "care"
COLLECTION = "care-perf-index"
TOP_K = 10
PAGE = 512
REST_SECONDS = 5.0
"""A collection that was green for so long has nothing left to optimize."""
_POLL_SECONDS = 0.25
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the server."""

    resident_mib: float
    anonymous_mib: float
    """Memory without mapped files, whose pages the system may take back."""


@dataclass(frozen=True, slots=True)
class Build:
    """The time from the creation of a collection until nothing is left to optimize."""

    client_cpu_seconds: float
    server_cpu_seconds: float
    upload_seconds: float
    green_seconds: float
    """Seconds on the clock from the start until the collection is green."""
    indexed_vectors: int


@dataclass(frozen=True, slots=True)
class Found:
    """Single queries, one after the other."""

    recall_at_10: float | None
    """Recall of the searches; None where the collection changes under them."""
    p50_ms: float
    p95_ms: float
    server_cpu_ms: float
    """Mean per query, of all that the server does; other load changes it less than the times on the clock."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Settings with which a collection is created."""

    params: models.VectorParams
    quantization: models.QuantizationConfig | None = None
    deferred: bool = True
    """Build no graph until everything is there, as ingestion does."""
    indexes: Mapping[str, Any] = field(default_factory=dict)
    """Payload indexes to make before the graph."""


@contextmanager
def connected(server: QdrantServer) -> Iterator[QdrantClient]:
    """Open a client over gRPC."""
    with open_client(url=server.url, grpc=True, grpc_port=server.grpc_port, timeout_seconds=_TIMEOUT_SECONDS) as client:
        yield client


def build(
    server: QdrantServer,
    client: QdrantClient,
    graph: Graph,
    rows: Vectors,
    payloads: Sequence[dict[str, Any]] | None = None,
) -> Build:
    """Create the collection, load it over gRPC, and wait until nothing is left to optimize."""
    mine, theirs, start = time.process_time(), cpu_seconds(server), time.perf_counter()
    params = graph.params
    if graph.deferred:
        params = params.model_copy(update={"hnsw_config": models.HnswConfigDiff(m=0)})
    client.create_collection(COLLECTION, {VECTOR: params}, quantization_config=graph.quantization)
    upload(client, rows, payloads)
    uploaded = time.perf_counter()
    for key, schema in graph.indexes.items():
        client.create_payload_index(COLLECTION, key, schema, wait=True)
    if graph.deferred:
        m = graph.params.hnsw_config.m if graph.params.hnsw_config else None
        default = client.get_collection(COLLECTION).config.hnsw_config.m
        diff = models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=m or default))
        client.update_collection(COLLECTION, vectors_config={VECTOR: diff})
    green = wait_until_green(client)
    indexed = client.get_collection(COLLECTION).indexed_vectors_count or 0
    used = time.process_time() - mine, cpu_seconds(server) - theirs
    return Build(round(used[0], 2), round(used[1], 2), round(uploaded - start, 2), round(green - start, 2), indexed)


def upload(
    client: QdrantClient, rows: Vectors, payloads: Sequence[dict[str, Any]] | None = None, *, first: int = 0
) -> None:
    """Write rows as points whose ids are counted from ``first``."""
    for start in range(0, len(rows), PAGE):
        numbered = enumerate(np.asarray(rows[start : start + PAGE]), start)
        points = [_point(first + number, row, payloads[number] if payloads else {}) for number, row in numbered]
        client.upsert(COLLECTION, points)


def wait_until_green(client: QdrantClient) -> float:
    """Return the time on the performance counter since when the collection has been at rest for `REST_SECONDS`."""
    since: float | None = None
    while since is None or time.perf_counter() - since < REST_SECONDS:
        is_green = client.get_collection(COLLECTION).status is models.CollectionStatus.GREEN
        since = (since or time.perf_counter()) if is_green else None
        time.sleep(_POLL_SECONDS)
    return since


def search(
    server: QdrantServer,
    client: QdrantClient,
    queries: Iterable[Vectors],
    exact: Sequence[set[int]] | None = None,
    params: models.SearchParams | None = None,
    filters: Sequence[models.Filter] | None = None,
) -> Found:
    """Time each query alone, and compare what it finds with its exact neighbours where these are given."""
    taken: list[float] = []
    found, theirs = [], cpu_seconds(server)
    for number, query in enumerate(queries):
        vector = query.tolist()
        start = time.perf_counter()
        hits = client.query_points(
            COLLECTION,
            vector,
            using=VECTOR,
            limit=TOP_K,
            search_params=params,
            query_filter=filters[number] if filters else None,
            with_payload=False,
        ).points
        taken.append((time.perf_counter() - start) * 1e3)
        found.append({UUID(str(hit.id)).int for hit in hits})
    theirs = (cpu_seconds(server) - theirs) * 1e3 / len(taken)
    p50, p95 = np.percentile(taken, (50, 95)).tolist()
    share = None if exact is None else recall(exact, found)
    return Found(share, round(p50, 2), round(p95, 2), round(theirs, 2))


def cpu_seconds(server: QdrantServer) -> float:
    """Return the user and system time of the server so far, in steps of 10 ms."""
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def page_faults(server: QdrantServer) -> int:
    """Return how often the server had to wait for a page of a file."""
    return int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[9])


def memory(server: QdrantServer) -> Memory:
    """Return the memory of the server now."""
    found = psutil.Process(server.pid).memory_info()
    return Memory(round(found.rss / 2**20, 1), round((found.rss - found.shared) / 2**20, 1))


def storage_bytes(server: QdrantServer) -> tuple[int, int]:
    """Return the bytes that the collection and its write-ahead log take on disk."""
    sizes = [0, 0]
    for file in (server.folder / "storage" / "collections").rglob("*"):
        if file.is_file():
            sizes["wal" in file.parts] += file.stat().st_blocks * 512
    return sizes[0], sizes[1]


def forget_cached_pages(folder: Path) -> None:
    """Write files to disk and drop them from the page cache, as after a reboot; nobody may have them mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _point(number: int, row: Vectors, payload: dict[str, Any]) -> models.PointStruct:
    return models.PointStruct.model_construct(id=str(UUID(int=number)), vector={VECTOR: row}, payload=payload)
