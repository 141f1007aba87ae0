"""The kinds of Qdrant that a test runs on; a real server is among them where ``QDRANT_BINARY`` names its program."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from qdrant_client import QdrantClient

from care_qdrant.qdrant.collection import Collection
from tests.reliability.processes import BINARY
from tests.standin import StandIn


def _where_real(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.server) for kind in kinds if BINARY]


REAL = _where_real("real-http", "real-grpc")
"""Further parameters of a fixture that opens databases; none without a server program."""

WIRES = ["stand-in", *_where_real("in-front")]
"""Parameters of a fixture that opens a server with faults: the stand-in alone, and in front of a real server."""


@contextmanager
def open_database(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """Open an empty database for the parameter of a fixture: ``embedded``, ``server`` (a stand-in) or one of `REAL`."""
    if request.param == "embedded":
        with closing(QdrantClient(":memory:")) as client:
            yield client
    elif request.param == "server":
        with StandIn() as server, closing(_client(server.url)) as client:
            yield client
    else:
        url = _emptied(request)
        with closing(_client(url, over_grpc=request.param == "real-grpc")) as client:
            yield client


@contextmanager
def open_wire(request: pytest.FixtureRequest, version: str = "1.19.0") -> Iterator[StandIn]:
    """Open an empty server with faults for one of `WIRES`; the version is that of the stand-in."""
    upstream = _emptied(request) if request.param == "in-front" else None
    with StandIn(version=version, upstream=upstream) as server:
        yield server


def behind(client: QdrantClient, alias: str) -> str | None:
    """Return the collection that an alias leads to."""
    return {each.alias_name: each.collection_name for each in client.get_aliases().aliases}.get(alias)


def require_server(client: QdrantClient, version: tuple[int, ...]) -> None:
    """Skip a test that needs a newer server than the client's; the embedded database is never too old."""
    if not Collection(client, "").is_since(version):
        pytest.skip(f"needs Qdrant {'.'.join(map(str, version))}")


def _emptied(request: pytest.FixtureRequest) -> str:
    """Return the URL of the real server, on which no collection is left."""
    url: str = request.getfixturevalue("own_url")
    with closing(_client(url)) as client:
        for found in client.get_collections().collections:
            client.delete_collection(found.name)
    return url


def _client(url: str, *, over_grpc: bool = False) -> QdrantClient:
    grpc_port = int(url.rpartition(":")[2]) + 1
    return QdrantClient(url=url, grpc_port=grpc_port, prefer_grpc=over_grpc, timeout=60, check_compatibility=False)
