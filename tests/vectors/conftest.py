"""The kinds of Qdrant that a collection may live in."""

from collections.abc import Iterator

import pytest
from qdrant_client import QdrantClient

from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from tests.standin import StandIn
from tests.tiny import HashModel
from tests.vectors.collections import NAME, fill


@pytest.fixture
def model() -> HashModel:
    return HashModel(name="care")


@pytest.fixture
def attached(qdrant: QdrantClient, model: HashModel) -> QdrantClient:
    """A database of each kind with a collection that has our vector beside the users' own."""
    fill(qdrant, "named", "plain")
    attach_vector(qdrant, NAME, model)
    return qdrant


@pytest.fixture
def client(server: StandIn) -> Iterator[QdrantClient]:
    """A client of a server; calls to an embedded database wait for each other."""
    with open_client(url=server.url) as client:
        yield client
