"""The kinds of Qdrant that a collection may live in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient

from tests.attach.engine import EngineClient
from tests.standin import StandIn
from tests.tiny import HashModel


@pytest.fixture
def model() -> HashModel:
    return HashModel(name="care")


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


def _open(kind: str, request: pytest.FixtureRequest, folder: Path) -> Any:
    if kind == "server":
        return QdrantClient(url=request.getfixturevalue("server").url, check_compatibility=False)
    return QdrantClient(":memory:") if kind == "embedded" else EngineClient(folder)


@pytest.fixture(params=["embedded", "server"])
def qdrant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QdrantClient]:
    """An empty database, of each kind in turn."""
    client = _open(request.param, request, tmp_path)
    yield client
    client.close()


@pytest.fixture(params=["embedded", "server", "engine"])
def any_qdrant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QdrantClient]:
    """The same, and Qdrant's own engine with the methods that attach uses."""
    client = _open(request.param, request, tmp_path)
    yield client
    client.close()
