import threading
from pathlib import Path

import pytest
from care_benchmarks.speed import WARM_UP_QUERIES, measure_cold_start, measure_load, summarise

from care_qdrant.errors import CareError

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)


def test_percentiles_are_in_milliseconds() -> None:
    latency = summarise([number / 1000 for number in range(1, 101)])
    assert (latency.samples, latency.mean_ms, latency.p50_ms) == (100, pytest.approx(50.5), pytest.approx(50.5))
    assert (latency.p95_ms, latency.p99_ms) == (pytest.approx(95.05), pytest.approx(99.01))


@pytest.mark.parametrize(("calls", "known"), [(3, []), (19, []), (20, [95]), (99, [95]), (100, [95, 99])])
def test_a_percentile_needs_calls_above_it(calls: int, known: list[int]) -> None:
    latency = summarise([0.001] * calls)
    found = {95: latency.p95_ms, 99: latency.p99_ms}
    assert [percent for percent, milliseconds in found.items() if milliseconds is not None] == known


def test_a_load_sends_every_query_in_turn_after_the_warm_up() -> None:
    sent: list[str] = []
    load = measure_load(sent.append, ["a", "b"], concurrency=1, samples=5)
    assert sent[WARM_UP_QUERIES:] == ["a", "b", "a", "b", "a"]
    assert (load.concurrency, load.latency.samples) == (1, 5)
    assert load.queries_per_second > 0


def test_clients_wait_for_their_own_answer_only() -> None:
    """All four clients have a query open at once: a barrier that needs four would else never open."""
    barrier = threading.Barrier(4, timeout=10)
    warmed = [0]

    def answer(_query: str) -> None:
        if warmed[0] < WARM_UP_QUERIES:
            warmed[0] += 1
        else:
            barrier.wait()

    assert measure_load(answer, ["q"], concurrency=4, samples=8).latency.samples == 8


def test_a_slow_system_gets_fewer_samples() -> None:
    load = measure_load(lambda _: None, ["q"], concurrency=1, samples=10**9, budget_seconds=0.05)
    assert load.latency.samples < 10**9


def test_an_error_of_the_system_is_not_a_fast_answer() -> None:
    calls = iter(range(10**6))

    def answer(_query: str) -> None:
        if next(calls) > WARM_UP_QUERIES + 2:
            raise CareError("gone")

    with pytest.raises(CareError, match="gone"):
        measure_load(answer, ["q"], concurrency=2, samples=20)


def test_cold_start_is_that_of_a_fresh_process(pair_folder: Path) -> None:
    """This process has torch in it; the measured one answers with onnxruntime alone, in far less memory."""
    import resource

    import torch  # noqa: F401

    found = measure_cold_start(str(pair_folder), "auto", "耳鸣")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert 0 < found.peak_memory_mib < own
    assert found.cpu_seconds > 0
    assert found.wall_seconds > 0
    with pytest.raises(CareError, match="cold start of /nowhere"):
        measure_cold_start("/nowhere", "auto", "耳鸣")
