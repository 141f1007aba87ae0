"""The kinds of Qdrant that a test runs on; a real server is among them where ``QDRANT_BINARY`` names its program."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from qdrant_client import QdrantClient

from tests.reliability.processes import BINARY

REAL = [pytest.param(kind, marks=pytest.mark.server) for kind in ("real-http", "real-grpc") if BINARY]
"""Further parameters of a fixture that opens databases; none without a server program."""


@contextmanager
def open_database(request: pytest.FixtureRequest, server: str = "server") -> Iterator[QdrantClient]:
    """Open an empty database for the parameter of a fixture.

    Args:
        request: Of the fixture; its parameter is ``embedded``, ``server`` or one of `REAL`.
        server: Fixture with the stand-in that ``server`` means.
    """
    if request.param == "embedded":
        opened = QdrantClient(":memory:")
    elif request.param == "server":
        opened = QdrantClient(url=request.getfixturevalue(server).url, check_compatibility=False)
    else:
        url: str = request.getfixturevalue("own_url")
        grpc_port, over_grpc = int(url.rpartition(":")[2]) + 1, request.param == "real-grpc"
        options = {"prefer_grpc": over_grpc, "grpc_port": grpc_port, "timeout": 60}
        opened = QdrantClient(url=url, check_compatibility=False, **options)
        for found in opened.get_collections().collections:
            opened.delete_collection(found.name)
    with closing(opened) as client:
        yield client
