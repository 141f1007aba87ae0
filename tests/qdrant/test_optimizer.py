"""The names of vectors change only while a server's optimizer rests."""

from collections.abc import Iterator

import pytest
from qdrant_client import models

from care_qdrant.qdrant import collection as collections
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from tests.databases import require_added_vectors
from tests.standin import StandIn

DENSE = models.DenseVectorNameConfig(dense=models.DenseVectorConfig(size=2, distance=models.Distance.DOT))


@pytest.fixture
def opened(server: StandIn) -> Iterator[tuple[StandIn, Collection]]:
    with open_client(url=server.url) as client:
        require_added_vectors(client)
        client.create_collection("c", {"old": models.VectorParams(size=2, distance=models.Distance.DOT)})
        yield server, Collection(client, "c")


def test_vectors_come_and_go_after_the_optimizer_has_finished(opened: tuple[StandIn, Collection]) -> None:
    server, collection = opened
    for change in (lambda: collection.add_vector("new", DENSE), lambda: collection.remove_vector("new")):
        server.faults.add("yellow", times=3, path="/collections/c$")
        server.requests.clear()
        change()
        assert [request.path for request in server.requests] == ["/collections/c"] * 4 + ["/collections/c/vectors/new"]


def test_an_optimizer_that_does_not_end_is_warned_of(
    opened: tuple[StandIn, Collection], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server, collection = opened
    monkeypatch.setattr(collections, "OPTIMIZER_SECONDS", 0)
    server.faults.add("yellow", times=1_000, path="/collections/c$")
    collection.add_vector("new", DENSE)
    assert "is being optimized: waiting" in caplog.text
    assert "may be there again (Qdrant 1.18.3)" in caplog.text
    server.faults.clear()
    assert "new" in collection.refresh().dense
