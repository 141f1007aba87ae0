"""Each fault on a real socket: the run finishes with an exact count, or stops and says how to go on."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import Rejected, Unreachable
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.types import Document
from tests.ingestion.conftest import IMPATIENT, WriteCorpus, short_rows, stored_texts
from tests.standin import StandIn
from tests.standin.faults import Kind
from tests.tiny import BusyEncoder, HashModel

ROWS = short_rows(600)
TEXTS = {row["id"]: row["text"] for row in ROWS}
SMALL_BATCHES = IngestSettings(batch_tokens=1_000)


@pytest.fixture
def corpus(write_corpus: WriteCorpus) -> Path:
    return write_corpus(ROWS)


@pytest.mark.parametrize("path", ["/points$", "/collections/corpus$", "/points/count$", "/exists$", "/index$"])
@pytest.mark.parametrize("kind", ["500", "429", "drop", "reset", "wait_timeout"])
def test_passing_faults_are_outlasted(
    corpus: Path, client: QdrantClient, server: StandIn, kind: Kind, path: str
) -> None:
    server.faults.add(kind, times=3, path=path, skip=1, seconds=0)
    report = ingest(corpus, HashModel(), Collection(client, "corpus", IMPATIENT), settings=SMALL_BATCHES)
    assert (report.encoded, report.points) == (600, 600)
    assert stored_texts(client) == TEXTS


def test_a_silent_server_is_asked_again(corpus: Path, client: QdrantClient, server: StandIn) -> None:
    server.faults.add("timeout", method="PUT", path="/points$", seconds=600)
    with open_client(url=server.url, timeout_seconds=3) as impatient:
        report = ingest(corpus, HashModel(), Collection(impatient, "corpus", IMPATIENT))
    assert report.points == 600
    assert stored_texts(client) == TEXTS


def test_giving_up_names_what_is_stored_and_how_to_go_on(corpus: Path, client: QdrantClient, server: StandIn) -> None:
    fault = server.faults.add("500", times=10_000, method="PUT", path="/points$", skip=2)
    with pytest.raises(Unreachable, match=r"gave up after 6 attempts .*500.* run the same command again to go on"):
        ingest(corpus, HashModel(), Collection(client, "corpus", IMPATIENT), settings=SMALL_BATCHES)
    stored = client.count("corpus").count
    assert 0 < stored < 600
    # Bounded: at most six attempts for each of the four threads.
    assert 6 <= 10_000 - fault.times <= 24
    server.faults.clear()
    model = HashModel()
    report = ingest(corpus, model, Collection(client, "corpus", IMPATIENT))
    assert (report.unchanged, report.encoded, report.points) == (stored, 600 - stored, 600)
    assert stored_texts(client) == TEXTS


def test_a_failed_read_names_what_is_stored_too(corpus: Path, client: QdrantClient, server: StandIn) -> None:
    ingest(corpus, HashModel(), Collection(client, "corpus", IMPATIENT), settings=IngestSettings(limit=10))
    server.faults.add("500", times=10_000, method="POST", path="/points$")
    with pytest.raises(Unreachable, match=r"reading stored hashes .* this run stored 0 points; run the same"):
        ingest(corpus, HashModel(), Collection(client, "corpus", IMPATIENT))


@pytest.mark.parametrize("kind", ["429", "drop", "reset", "wait_timeout"])
def test_no_fault_is_endured_for_ever(corpus: Path, client: QdrantClient, server: StandIn, kind: Kind) -> None:
    fault = server.faults.add(kind, times=10_000, method="PUT", path="/points$", seconds=0)
    with pytest.raises(Unreachable, match=r"gave up after 6 attempts.* this run stored 0 points"):
        ingest(corpus, HashModel(), Collection(client, "corpus", IMPATIENT), settings=SMALL_BATCHES)
    assert 10_000 - fault.times <= 24


def test_requests_that_are_too_large_are_halved(
    write_corpus: WriteCorpus, client: QdrantClient, server: StandIn
) -> None:
    server.max_bytes = 60_000
    rows = [{"id": f"d{n}", "text": f"{n}" + "长" * 2_000} for n in range(60)]
    report = ingest(write_corpus(rows), HashModel(max_tokens=4_000), Collection(client, "corpus", IMPATIENT))
    assert report.points == 60
    assert stored_texts(client) == {row["id"]: row["text"] for row in rows}


def test_a_point_that_is_too_large_alone_is_named(
    write_corpus: WriteCorpus, client: QdrantClient, server: StandIn
) -> None:
    server.max_bytes = 60_000
    rows = [{"id": "small", "text": "短"}, {"id": "huge", "text": "长" * 50_000}]
    ingest(write_corpus(rows[:1]), HashModel(max_tokens=100_000), Collection(client, "corpus", IMPATIENT))
    with pytest.raises(Rejected, match=r"document 'huge' makes a request that the server finds too large"):
        ingest(write_corpus(rows), HashModel(max_tokens=100_000), Collection(client, "corpus", IMPATIENT))
    assert stored_texts(client) == {"small": "短"}


def test_a_wrong_request_is_not_sent_twice(server: StandIn, client: QdrantClient) -> None:
    client.create_collection("c", vectors_config=models.VectorParams(size=4, distance=models.Distance.COSINE))
    collection = Collection(client, "c", IMPATIENT)
    point = models.PointStruct(id=1, vector=[1.0, 2.0])
    with pytest.raises(Rejected, match="writing a point in collection 'c': Qdrant refuses it: 400"):
        collection.write("writing a point", lambda: client.upsert("c", [point], wait=True))
    assert server.count("PUT", "/points") == 1


def test_retry_after_is_kept(server: StandIn, client: QdrantClient) -> None:
    server.faults.add("429", path="/collections$", seconds=1)
    start = time.monotonic()
    Collection(client, "c", IMPATIENT).call("asking", client.get_collections)
    assert time.monotonic() - start >= 1


def test_a_server_that_always_asks_to_wait_ends_with_the_patience(server: StandIn, client: QdrantClient) -> None:
    server.faults.add("429", times=1_000, path="/collections$", seconds=1)
    with pytest.raises(Unreachable, match=r"asking in collection 'c': gave up after [23] attempts"):
        Collection(client, "c", RetryPolicy(patience_seconds=1.5)).call("asking", client.get_collections)


def test_a_key_that_may_only_read_is_refused_at_once(corpus: Path, server: StandIn) -> None:
    server.api_key, server.read_only_key = "write", "read"
    with open_client(url=server.url, api_key="read") as client, pytest.raises(Rejected, match="403"):
        ingest(corpus, HashModel(), Collection(client, "corpus", IMPATIENT))
    assert server.count("PUT", "/collections/corpus") == 1


def test_rates_and_forbidden_exact_counts_are_lived_with(write_corpus: WriteCorpus) -> None:
    """Only the stand-in can show it: it refuses all above the rate of a minute, and lets no minute pass."""
    rows, model = short_rows(60), HashModel()
    with StandIn() as standin, open_client(url=standin.url) as client:
        ingest(write_corpus(rows[:1]), model, Collection(client, "corpus", IMPATIENT))
        strict = models.StrictModeConfig(enabled=True, write_rate_limit=7, read_rate_limit=9, search_allow_exact=False)
        client.update_collection("corpus", strict_mode_config=strict)
        report = ingest(write_corpus(rows), model, Collection(client, "corpus", IMPATIENT))
        assert (report.encoded, report.points) == (59, 60)
        sync = IngestSettings(sync=True)
        report = ingest(write_corpus(rows[:50]), model, Collection(client, "corpus", IMPATIENT), settings=sync)
    assert (report.deleted, report.points) == (10, 50)


def test_limits_of_strict_mode_are_kept(corpus: Path, client: QdrantClient) -> None:
    model = HashModel()
    ingest(corpus, model, client, "corpus", settings=IngestSettings(limit=1))
    strict = models.StrictModeConfig(
        enabled=True,
        upsert_max_batchsize=50,
        max_query_limit=100,
        unindexed_filtering_retrieve=False,
        unindexed_filtering_update=False,
    )
    client.update_collection("corpus", strict_mode_config=strict)
    report = ingest(corpus, model, Collection(client, "corpus", IMPATIENT), settings=IngestSettings(sync=True))
    assert report.points == 600


def test_interrupting_a_run_ends_its_waiting(corpus: Path, client: QdrantClient, server: StandIn) -> None:
    server.faults.add("500", times=10_000, method="PUT", path="/points$")

    def interrupt(_: int) -> None:
        if len(model._encoder.encoded) > 100:
            raise KeyboardInterrupt

    model = HashModel()
    model._encoder = BusyEncoder(interrupt)
    patient = RetryPolicy(attempts=50, base_seconds=3_600, cap_seconds=3_600)
    with pytest.raises(KeyboardInterrupt):
        ingest(corpus, model, Collection(client, "corpus", patient), settings=SMALL_BATCHES)


def test_texts_that_lose_their_terms_lose_their_vectors_within_the_limits(client: QdrantClient) -> None:
    documents, sparse = [Document(f"d{n}", f"发烧 {n}") for n in range(20)], IngestSettings(sparse=True)
    ingest(documents, HashModel(), client, "corpus", settings=sparse)
    strict = models.StrictModeConfig(enabled=True, condition_max_size=1)
    client.update_collection("corpus", strict_mode_config=strict)
    documents[:15] = [Document(document.id, "？！") for document in documents[:15]]
    assert ingest(documents, HashModel(), client, "corpus", settings=sparse).encoded == 15
    assert Collection(client, "corpus").count_with_vector("bm25") == 5


@pytest.mark.parametrize("most", [1, 300])
def test_a_limit_of_points_that_is_overrun_loses_nothing(corpus: Path, client: QdrantClient, most: int) -> None:
    """A server checks the limit before a write, against a count that may be old: a run can pass it by some requests."""
    model = HashModel()
    ingest(corpus, model, client, "corpus", settings=replace(SMALL_BATCHES, limit=1))
    limits = models.StrictModeConfig(enabled=True, max_points_count=most)
    client.update_collection("corpus", strict_mode_config=limits)
    with pytest.raises(Rejected, match="Max points count limit"):
        ingest(corpus, model, Collection(client, "corpus", IMPATIENT), settings=SMALL_BATCHES)
    stored = client.count("corpus").count
    assert most <= stored < 600
    assert Collection(client, "corpus").schema.unfinished is not None
    client.update_collection(
        "corpus", strict_mode_config=models.StrictModeConfig(enabled=True, max_points_count=10_000)
    )
    report = ingest(corpus, model, Collection(client, "corpus", IMPATIENT))
    assert (report.unchanged, report.encoded, report.points) == (stored, 600 - stored, 600)
    assert stored_texts(client) == TEXTS
    assert Collection(client, "corpus").schema.unfinished is None


def test_the_last_request_may_overrun_a_limit_of_points(corpus: Path, client: QdrantClient) -> None:
    model = HashModel()
    ingest(corpus, model, client, "corpus", settings=replace(SMALL_BATCHES, limit=1))
    limits = models.StrictModeConfig(enabled=True, max_points_count=599)
    client.update_collection("corpus", strict_mode_config=limits)
    assert ingest(corpus, model, client, "corpus", settings=SMALL_BATCHES).points == 600
    assert ingest(corpus, model, client, "corpus", settings=SMALL_BATCHES).unchanged == 600
