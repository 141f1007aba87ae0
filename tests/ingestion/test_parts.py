"""The small machines that an ingestion is made of."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import CareError
from care_qdrant.ingestion.pipeline import read_ahead
from care_qdrant.ingestion.seen import Seen
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.retry import Outage, RetryPolicy
from care_qdrant.qdrant.sender import MAX_BYTES, QUEUE, Sender, Write, by_size
from care_qdrant.types import Document


def numbers(until: int, made: list[int]) -> Iterator[int]:
    for number in range(until):
        made.append(number)
        yield number


def test_reading_ahead_keeps_the_order_and_stays_bounded() -> None:
    made: list[int] = []
    with closing(read_ahead(numbers(100, made), 3)) as ahead:
        assert next(ahead) == 0
        assert next(ahead) == 1
        assert len(made) <= 5
        assert list(ahead) == list(range(2, 100))


def test_an_error_of_the_reader_comes_in_its_place() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise CareError("damaged")

    ahead = read_ahead(broken(), 2)
    assert next(ahead) == 1
    with pytest.raises(CareError, match="damaged"):
        next(ahead)


def test_a_consumer_that_stops_ends_the_reader() -> None:
    made: list[int] = []
    with closing(read_ahead(numbers(1_000_000, made), 2)) as ahead:
        next(ahead)
    assert len(made) <= 4


def test_seen_documents() -> None:
    with Seen() as seen:
        assert seen.add(Document("1", "a", metadata={"x": 1})) == "new"
        assert seen.add(Document("1", "a", metadata={"x": 1})) == "same"
        assert seen.add(Document("1", "a", metadata={"x": 2})) == "other"
        assert seen.add(Document("1", "b")) == "other"
        assert seen.add(Document("1", "a", metadata={"x": 1.0})) == "other"
        assert seen.add(Document("3", "a", metadata={"x": 1, "y": 2})) == "new"
        assert seen.add(Document("3", "a", metadata={"y": 2, "x": 1})) == "same", "keys have no order"
        seen.set_chunks({"1": 2})
        assert seen.chunks("1") == 2
        assert seen.chunks("3") == 1, "one chunk, unless said otherwise"
        seen.set_chunks({"3": 0})
        assert seen.chunks("3") == 0, "it could not be cut"
        assert seen.chunks("2") is None


def test_delays_grow_are_capped_and_random() -> None:
    policy = RetryPolicy(base_seconds=1, cap_seconds=5)
    for attempt, longest in enumerate([1, 2, 4, 5, 5]):
        delays = [policy.delay(attempt) for _ in range(200)]
        assert 0 <= min(delays) < longest / 4
        assert longest * 3 / 4 < max(delays) <= longest


def test_the_default_patience_outlasts_a_server_that_is_gone_for_nine_minutes() -> None:
    policy = RetryPolicy()
    assert not policy.is_over(attempts=1_000, seconds=540)
    assert policy.is_over(attempts=40, seconds=600)
    assert policy.delay(5_000) <= policy.cap_seconds
    assert RetryPolicy(patience_seconds=0).is_over(attempts=1, seconds=0)
    assert RetryPolicy(attempts=3).is_over(attempts=3, seconds=0)


def test_one_line_when_waiting_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    outage.end("reading")
    assert not caplog.records
    outage.begin("reading: waiting")
    outage.begin("writing: waiting")
    outage.end("writing")
    outage.end("reading")
    assert len(caplog.records) == 2


def point(number: int, text: str = "") -> models.PointStruct:
    return models.PointStruct(id=number, vector={"v": [1.0, 2.0]}, payload={"_node_content": text})


def test_requests_keep_to_points_and_bytes() -> None:
    many = Write([point(number) for number in range(1_000)])
    assert [len(part) for part in by_size(many, 2, 256)] == [256, 256, 256, 232]
    heavy = Write([point(number, "长" * 300_000) for number in range(7)])
    parts = list(by_size(heavy, 2, 256))
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert MAX_BYTES > 2 * 900_000 * 2
    assert [each.id for part in parts for each in part.points] == list(range(7))
    assert list(by_size(Write([]), 2, 256)) == []


@pytest.fixture
def client(client: QdrantClient) -> QdrantClient:
    client.create_collection("c", {"v": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    return client


def test_a_slow_server_holds_the_encoder_back(client: QdrantClient) -> None:
    waiting: list[int] = []
    with Sender(Collection(client, "c")) as sender:
        for number in range(60):
            sender.submit(lambda number=number: [Write([point(number)])])  # type: ignore[misc]
            waiting.append(number + 1 - sender.stored)
    assert max(waiting) <= QUEUE
    assert sender.stored == client.count("c").count == 60


def test_an_error_of_the_block_is_not_hidden(client: QdrantClient) -> None:
    with pytest.raises(ZeroDivisionError), Sender(Collection(client, "c")) as sender:
        sender.submit(lambda: [Write([point(1)])])
        _ = 1 / 0


def test_an_error_while_building_points_is_raised(client: QdrantClient) -> None:
    with pytest.raises(ZeroDivisionError), Sender(Collection(client, "c")) as sender:
        sender.submit(lambda: [Write([point(1 // 0)])])
