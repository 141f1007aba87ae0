"""The names of vectors change only while a server's optimizer rests, and what it hides meanwhile is not left out."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import QdrantError
from care_qdrant.qdrant import optimizer
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from tests.databases import REAL, open_database
from tests.standin import StandIn

DENSE = models.DenseVectorNameConfig(dense=models.DenseVectorConfig(size=2, distance=models.Distance.DOT))


@pytest.fixture
def opened(server: StandIn) -> Iterator[tuple[StandIn, Collection]]:
    with open_client(url=server.url) as client:
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
    monkeypatch.setattr(optimizer, "LONGEST_SECONDS", 0)
    server.faults.add("yellow", times=1_000, path="/collections/c$")
    collection.add_vector("new", DENSE)
    assert "is being optimized: waiting" in caplog.text
    assert "may reappear (Qdrant 1.18.3)" in caplog.text
    server.faults.clear()
    assert "new" in collection.refresh().dense


def test_points_that_a_server_hides_are_waited_for(
    opened: tuple[StandIn, Collection], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, collection = opened
    config = collection.schema.config
    hiding = config.optimizer_config.model_copy(update={"prevent_unoptimized": True})
    collection._schema = replace(collection.schema, config=config.model_copy(update={"optimizer_config": hiding}))
    for read in (collection.count, lambda: list(collection.scroll())):
        server.faults.add("yellow", times=2, path="/collections/c$")
        server.requests.clear()
        read()
        assert [request.path for request in server.requests][:-1] == ["/collections/c"] * 3
    monkeypatch.setattr(optimizer, "LONGEST_SECONDS", 0)
    server.faults.add("yellow", times=1_000, path="/collections/c$")
    assert collection.count(as_seen=True) == 0
    with pytest.raises(QdrantError, match="still hides points"):
        collection.count()


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    with open_database(request) as client:
        yield client


def test_a_real_server_that_hides_points_is_counted_whole(real: QdrantClient) -> None:
    optimizers = models.OptimizersConfigDiff(indexing_threshold=10, default_segment_number=1, prevent_unoptimized=True)
    config = models.VectorParams(size=32, distance=models.Distance.COSINE)
    Collection(real, "hidden").create(vectors_config={"old": config}, optimizers_config=optimizers)
    vectors = np.random.default_rng(0).standard_normal((6_000, 32)).tolist()
    for start in range(0, 6_000, 1_000):
        batch = models.Batch(ids=list(range(start, start + 1_000)), vectors={"old": vectors[start : start + 1_000]})
        real.upsert("hidden", batch, wait=False)
    collection = Collection(real, "hidden")
    if collection.schema.config.optimizer_config.prevent_unoptimized is None:
        pytest.skip("the server is too old to hide points")
    assert collection.count(as_seen=True) < 6_000, "the server shows them all: nothing is tried here"
    assert collection.count() == 6_000
