"""Filtered searches by the moment at which the payload index was made, and what ACORN adds."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient, models

from care_qdrant.types import Vectors
from tests.reliability.processes import QdrantServer

from .exact import nearest
from .index_ways import WAYS, graph_of
from .own_server import COLLECTION, TOP_K, Build, Found, build, connected, search, wait_until_green

FEW, MANY, NUMBERS = 10, 1_000, 10_000
"""Distinct values of the three payload keys."""
ACORN_SINCE = (1, 16)
KEYWORD, INTEGER = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.INTEGER
INDEXES: dict[str, Any] = {"few": KEYWORD, "many": KEYWORD, "number": INTEGER}
TENANT = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "no index": {},
    "index before the graph": INDEXES,
    "index of tenants before the graph": {"few": TENANT, "many": TENANT, "number": INTEGER},
}
"""Payload indexes that are made before the graph."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """Searches by one kind of filter."""

    indexed: str
    """Time at which the payload indexes were made: before or after the points."""
    filter: str
    acorn: bool
    found: Found


@dataclass(frozen=True, slots=True)
class Arranged:
    """One collection."""

    build: Build
    searches: list[Filtered]


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    filters: list[models.Filter]
    exact: list[set[int]]


def measure_filters(binary: str, scratch: Path | None, arrangement: str, rows: Vectors, queries: Vectors) -> Arranged:
    """Search with each filter in one collection; in one without payload indexes, once more after they were made."""
    payloads, kinds = _payloads(len(rows)), list(_kinds(rows, queries))
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        QdrantServer(binary, Path(folder)) as server,
        connected(server) as client,
    ):
        graph = replace(graph_of(client, WAYS["float32"], rows.shape[1]), indexes=ARRANGEMENTS[arrangement])
        built = build(server, client, graph, rows, payloads)
        searches = list(_search(server, client, arrangement, queries, kinds))
        if not graph.indexes:
            for key, schema in INDEXES.items():
                client.create_payload_index(COLLECTION, key, schema, wait=True)
            wait_until_green(client)
            searches += _search(server, client, "index after the graph", queries, kinds)
    return Arranged(built, searches)


def _search(
    server: QdrantServer, client: QdrantClient, indexed: str, queries: Vectors, kinds: Sequence[_Kind]
) -> Iterator[Filtered]:
    version = tuple(int(part) for part in client.info().version.split(".")[:2])
    for kind in kinds:
        for acorn in (False, True) if version >= ACORN_SINCE else (False,):
            params = models.SearchParams(acorn=models.AcornSearchParams(enable=True)) if acorn else None
            search(server, client, queries[:TOP_K], kind.exact[:TOP_K], params, kind.filters)
            found = search(server, client, queries, kind.exact, params, kind.filters)
            yield Filtered(indexed, kind.name, acorn, found)


def _kinds(rows: Vectors, queries: Vectors) -> Iterator[_Kind]:
    """Yield the filters; each query has a value of its own."""
    numbers = np.random.default_rng(1).integers(0, NUMBERS, len(rows))
    own = np.arange(len(queries))
    for name, values, wanted in (("few", numbers % FEW, own % FEW), ("many", numbers % MANY, own % MANY)):
        filters = [_filter(models.FieldCondition(key=name, match=models.MatchValue(value=f"{one}"))) for one in wanted]
        yield _Kind(f"keyword, 1 in {_count(name):,}", filters, _exact(rows, queries, values == wanted[:, None]))
    lowest = own * 37 % (NUMBERS - NUMBERS // FEW)
    ends = lowest + NUMBERS // FEW
    ranges = [models.Range(gte=int(low), lt=int(end)) for low, end in zip(lowest, ends, strict=True)]
    filters = [_filter(models.FieldCondition(key="number", range=one)) for one in ranges]
    inside = (numbers >= lowest[:, None]) & (numbers < ends[:, None])
    yield _Kind(f"integer range, 1 in {FEW}", filters, _exact(rows, queries, inside))


def _payloads(points: int) -> list[dict[str, Any]]:
    numbers = np.random.default_rng(1).integers(0, NUMBERS, points).tolist()
    return [{"few": f"{number % FEW}", "many": f"{number % MANY}", "number": number} for number in numbers]


def _count(name: str) -> int:
    return FEW if name == "few" else MANY


def _filter(condition: models.FieldCondition) -> models.Filter:
    return models.Filter(must=[condition])


def _exact(rows: Vectors, queries: Vectors, keep: npt.NDArray[np.bool_]) -> list[set[int]]:
    return nearest(rows, queries, TOP_K, keep)
