"""The two kinds of Qdrant that a collection may live in."""

from collections.abc import Iterator

import pytest
from qdrant_client import QdrantClient

from tests.standin import StandIn
from tests.tiny import HashModel


@pytest.fixture
def model() -> HashModel:
    return HashModel(name="care")


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture(params=["embedded", "server"])
def qdrant(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """An empty database, of each kind in turn."""
    if request.param == "server":
        url = request.getfixturevalue("server").url
        client = QdrantClient(url=url, check_compatibility=False)
    else:
        client = QdrantClient(":memory:")
    yield client
    client.close()
