"""A real cluster below an attach: its shards are moved, or a node is killed where writes need both replicas."""

from pathlib import Path

import pytest

from tests.reliability.attachment import attach_trials
from tests.reliability.processes import BINARY, NodeFault, QdrantCluster
from tests.reliability.replicas import await_settled, compare_replicas
from tests.reliability.trials import Fault


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
