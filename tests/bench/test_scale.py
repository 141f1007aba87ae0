"""A small run of what is measured with a million documents."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.perf.memory import watched_memory
from benchmarks.perf.numbered import NumberedEncoder, numbered_pair
from benchmarks.perf.scale import Where, measure_scale

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("where", ["server", "embedded"])
def test_every_document_that_is_asked_for_is_found(where: Where, tmp_path: Path) -> None:
    found = measure_scale(tmp_path, where, documents=230, dim=24)
    assert (found.where, found.documents, found.dim, found.ndcg_at_10) == (where, 230, 24, 1.0)
    assert 0 < found.speed.latency.samples <= 100
    assert 0 < found.before.private_mib <= found.after.private_mib < found.after.resident_mib


def test_a_lost_document_costs_score() -> None:
    """The vectors of different numbers are far apart, those of a query and its document are near."""
    pair = numbered_pair(64)
    texts = [f"第{number}条" for number in (1, 2, 1_001)]
    cosines = pair.encode_query(texts) @ pair.encode_document([f"{text}：高血压" for text in texts]).T
    assert np.diag(cosines) == pytest.approx(np.full(3, 1 / np.hypot(1, 0.3)), abs=0.05)
    assert (cosines - np.diag(np.diag(cosines))).max() < 0.8
    assert np.array_equal(NumberedEncoder(8).encode(["第7条"]), NumberedEncoder(8).encode(["第7条：x", "第8条"])[:1])


def test_memory_is_watched_to_its_peak() -> None:
    with watched_memory() as peak:
        before = peak.private_mib
        held = np.ones(64 * 2**17)  # to the end, where memory is read a last time: no sample has to meet it
    assert held.nbytes == 64 * 2**20
    assert peak.private_mib - before > 50
