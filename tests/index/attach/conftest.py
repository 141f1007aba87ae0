"""The kinds of Qdrant that a collection may live in."""

from collections.abc import Iterator

import pytest
from qdrant_client import QdrantClient

from care_qdrant.qdrant.connection import open_client
from tests.standin import StandIn
from tests.tiny import HashModel


@pytest.fixture
def model() -> HashModel:
    return HashModel(name="care")


@pytest.fixture
def client(server: StandIn) -> Iterator[QdrantClient]:
    """A client of a server; calls to an embedded database wait for each other."""
    with open_client(url=server.url) as client:
        yield client
