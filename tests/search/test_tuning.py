"""The loss by quantization is measured on the collection, and searches make up for it."""

import logging
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.contracts.metadata import QUANTIZATION
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import Storage, quantization_config
from care_qdrant.search.query import Query
from care_qdrant.search.resolved import StoreConfig, resolve_vectors
from care_qdrant.search.tuning import (
    MAX_LOSS,
    is_quantized,
    measure_recall,
    measure_rescoring,
    record_rescoring,
    recorded_rescoring,
)
from care_qdrant.types import Document
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.standin import StandIn
from tests.tiny import HashModel

NAME = "care-test-quantised"
DIM = 256


@pytest.fixture
def qdrant(server: StandIn) -> Iterator[QdrantClient]:
    with open_client(url=server.url) as client:
        yield client


def _searched_with(client: QdrantClient, params: models.SearchParams | None) -> models.SearchParams | None:
    schema = Collection(client, NAME).schema
    resolved = resolve_vectors(Collection(client, NAME), schema, StoreConfig(vector_name="care"), checked_at=0.0)
    [request] = Query([1.0], None, 10, params=params).requests(resolved)
    return request.params


def test_ingestion_records_and_searches_use_it(qdrant: QdrantClient) -> None:
    documents = [Document(f"d{n}", f"第{n}段") for n in range(30)]
    model = HashModel(name="care")
    ingest(documents, model, qdrant, NAME, storage=Storage(quantization="binary"))
    found = recorded_rescoring(Collection(qdrant, NAME).schema, "care")
    assert found is not None
    assert found.points == 30 and found.overlap_at_10 >= 1 - MAX_LOSS
    assert _searched_with(qdrant, None) == models.SearchParams(quantization=found.params)
    own = models.SearchParams(hnsw_ef=64)
    assert _searched_with(qdrant, own) == models.SearchParams(hnsw_ef=64, quantization=found.params)
    own = models.SearchParams(quantization=models.QuantizationSearchParams(rescore=False))
    assert _searched_with(qdrant, own) == own

    report = verify_collection(qdrant, NAME, model)
    assert report.problems == []
    assert report.rescoring is not None and report.rescoring.overlap_at_10 >= 1 - MAX_LOSS
    qdrant.update_collection(NAME, metadata={QUANTIZATION.of("care"): "theirs"})
    assert recorded_rescoring(Collection(qdrant, NAME).schema, "care") is None
    [problem] = verify_collection(qdrant, NAME, model).problems
    assert re.match(
        "searches of quantised vector 'care' need oversampling [1248] to lose at most 5%, and none", problem
    )


def test_attach_records_and_detach_removes_it(qdrant: QdrantClient) -> None:
    qdrant.create_collection(NAME, {"old": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    points = [models.PointStruct(id=n, vector={"old": [1.0, n]}, payload={"text": f"第{n}段"}) for n in range(20)]
    qdrant.upsert(NAME, points, wait=True)
    model = HashModel(name="care")
    attach_vector(qdrant, NAME, model)
    assert QUANTIZATION.of("care") not in Collection(qdrant, NAME).schema.metadata
    attach_vector(qdrant, NAME, model, settings=AttachSettings(quantization="int8"))
    schema = Collection(qdrant, NAME).schema
    assert (is_quantized(schema, "care"), is_quantized(schema, "old")) == (True, False)
    assert QUANTIZATION.of("care") in schema.metadata
    detach_vector(qdrant, NAME)
    assert QUANTIZATION.of("care") not in Collection(qdrant, NAME).schema.metadata


def test_a_folder_is_not_measured() -> None:
    client, model = QdrantClient(":memory:"), HashModel(name="care")
    ingest([Document("1", "甲")], model, client, NAME, storage=Storage(quantization="binary"))
    assert record_rescoring(Collection(client, NAME), "care") is None
    assert verify_collection(client, NAME, model).rescoring is None


@pytest.fixture(params=["clusters", "noise"])
def binary(request: pytest.FixtureRequest, real_url: str) -> Iterator[tuple[Collection, Sequence[Sequence[float]]]]:
    """A collection on a real server with binary vectors, and queries beside its vectors."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(400, DIM)) if request.param == "clusters" else np.zeros((400, DIM))
    rows = centres[rng.integers(0, 400, 4_000)] + rng.normal(size=(4_000, DIM)) * 0.7
    with open_client(url=real_url) as client:
        client.delete_collection(NAME)
        params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
        quantization = quantization_config("binary", {"always_ram": True})
        client.create_collection(NAME, {"v": params}, quantization_config=quantization)
        Collection(client, NAME).write_contract("v", VectorContract("a" * 64, "v", DIM))
        points = [models.PointStruct(id=n, vector={"v": row.tolist()}) for n, row in enumerate(rows)]
        client.upload_points(NAME, points, wait=True)
        # Below the default threshold a segment is neither indexed nor quantised.
        client.update_collection(NAME, optimizers_config=models.OptimizersConfigDiff(indexing_threshold=1_000))
        yield Collection(client, NAME), (rows[::80] + rng.normal(size=(50, DIM)) * 0.3).tolist()
        client.delete_collection(NAME)


@pytest.mark.server
def test_a_real_server_is_asked_for_as_many_as_it_takes(
    binary: tuple[Collection, Sequence[Sequence[float]]], caplog: pytest.LogCaptureFixture
) -> None:
    collection, queries = binary
    with caplog.at_level(logging.INFO, "care_qdrant"):
        recorded = record_rescoring(collection, "v")
    assert recorded is not None and recorded == recorded_rescoring(collection.refresh(), "v")
    assert recorded.without_rescoring < recorded.overlap_at_10
    assert any(f"{recorded.overlap_at_10:.1%}" in record.message for record in caplog.records)
    measured = measure_rescoring(collection, "v", queries)
    plain = measure_rescoring(collection, "v", queries, max_loss=1.0)
    assert plain.oversampling == 1.0 and 1 - plain.overlap_at_10 > MAX_LOSS
    assert measured.oversampling > 1.0 and measured.overlap_at_10 > plain.overlap_at_10


@pytest.mark.server
def test_what_the_graph_misses_is_no_loss_by_quantization(real_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A graph with few links misses neighbours; int8 adds nothing to that."""
    rows = np.random.default_rng(0).normal(size=(4_000, DIM))
    with open_client(url=real_url) as client:
        client.delete_collection(NAME)
        client.create_collection(
            NAME,
            {"v": models.VectorParams(size=DIM, distance=models.Distance.COSINE)},
            hnsw_config=models.HnswConfigDiff(m=4, ef_construct=8, full_scan_threshold=10),
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=100, default_segment_number=1),
            quantization_config=quantization_config("int8", {"always_ram": True}),
        )
        points = [models.PointStruct(id=n, vector={"v": row.tolist()}) for n, row in enumerate(rows)]
        client.upload_points(NAME, points, wait=True)
        collection = Collection(client, NAME)
        collection.wait_for_optimizer(60)
        recorded = record_rescoring(collection, "v")
        recall = measure_recall(collection, "v", rows[:64].tolist())
        client.delete_collection(NAME)
    assert recorded is not None
    assert recall is not None and recall == pytest.approx(recorded.unquantised, abs=0.1)
    assert recorded.unquantised < 1 - MAX_LOSS and not recorded.loses_too_much
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("distance", list(models.Distance))
def test_equal_vectors_in_any_order_are_no_loss_of_recall(qdrant: QdrantClient, distance: models.Distance) -> None:
    rows = np.repeat(np.random.default_rng(0).normal(size=(4, 8)), 15, axis=0).tolist()
    qdrant.create_collection(NAME, {"v": models.VectorParams(size=8, distance=distance)})
    qdrant.upsert(NAME, [models.PointStruct(id=n, vector={"v": row}) for n, row in enumerate(rows)], wait=True)
    assert measure_recall(Collection(qdrant, NAME), "v", rows) == 1.0
