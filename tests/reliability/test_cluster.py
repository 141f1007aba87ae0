"""A real cluster below an attach: its shards are moved, or a node is killed where writes need both replicas."""

from pathlib import Path

import pytest
from qdrant_client import models

from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.reliability.attachment import attach_trials
from tests.reliability.concurrent_writers import concurrent_writer_trials
from tests.reliability.processes import BINARY, NodeFault, QdrantCluster
from tests.reliability.replicas import await_settled, compare_replicas
from tests.reliability.trials import Fault
from tests.tiny import BusyEncoder, HashModel


@pytest.mark.server
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "write_consistency"), [("moved", 1), ("killed", 2)])
def test_an_attach_is_right_and_all_replicas_are_equal(
    tmp_path: Path, fault: NodeFault, write_consistency: int
) -> None:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    with QdrantCluster(BINARY, tmp_path, fault=fault, write_consistency=write_consistency) as cluster:
        found = list(attach_trials(200, 1, tmp_path, cluster.url, 0, Fault("server", cluster)))
        await_settled(cluster.urls)
        assert [trial for trial in found if not trial.is_good] == []
        assert compare_replicas(cluster.urls) == (200 * (len(found) + 2), 0)
    assert (cluster.transfers > 0) is (fault == "moved")


@pytest.mark.server
@pytest.mark.timeout(300)
def test_points_that_are_deleted_while_they_are_encoded_hold_up_no_attach(tmp_path: Path) -> None:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    model = HashModel(name="care")
    with QdrantCluster(BINARY, tmp_path) as cluster, open_client(url=cluster.nodes[0].url) as client:
        client.create_collection("docs", models.VectorParams(size=2, distance=models.Distance.COSINE))
        rows = [models.PointStruct(id=n, vector=[1.0, 0.5], payload={"text": f"第{n}段"}) for n in range(40)]
        client.upsert("docs", rows, wait=True)
        await_settled(cluster.urls)
        gone = iter(range(40))
        model._encoder = BusyEncoder(
            lambda _: client.delete("docs", [next(gone), next(gone), next(gone), next(gone)], wait=True)
        )
        impatient = Collection(client, "docs", RetryPolicy(attempts=4))
        report = attach_vector(impatient, model, settings=AttachSettings(batch_tokens=100))
        assert 0 < report.covered == client.count("docs").count < 40
        assert verify_collection(client, "docs", HashModel(name="care")).problems == []


@pytest.mark.server
@pytest.mark.timeout(900)
def test_an_attach_beside_a_writer_is_right_while_a_node_is_gone(tmp_path: Path) -> None:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    with QdrantCluster(BINARY, tmp_path, write_consistency=2) as cluster:
        found = list(concurrent_writer_trials(200, 2, tmp_path, cluster.url, 0, Fault("server", cluster)))
        await_settled(cluster.urls)
        assert [trial for trial in found if not trial.is_good] == []
        assert all(trial.observed["edited"] for trial in found)
        assert compare_replicas(cluster.urls)[1] == 0
