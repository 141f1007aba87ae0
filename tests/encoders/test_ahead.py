"""Calls ahead of their results: in order, bounded, and measured."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from care_qdrant.encoders.ahead import Meter, run_ahead


@pytest.mark.parametrize("calls", [1, 3])
def test_results_come_in_order_and_no_more_jobs_are_taken_than_can_wait(calls: int) -> None:
    taken = []

    def jobs() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    def run(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    with closing(run_ahead(jobs(), run, lambda: calls)) as found:
        assert next(found) == (0, 0)
        assert len(taken) <= 2 * calls
        assert list(found) == [(number, number * number) for number in range(1, 40)]


def test_calls_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=20)
    assert len(list(run_ahead(range(6), lambda _: barrier.wait(), lambda: 3))) == 6


def test_an_error_comes_after_the_results_before_it() -> None:
    def run(number: int) -> int:
        return 1 // (2 - number)

    found = run_ahead(range(5), run, lambda: 2)
    assert [next(found), next(found)] == [(0, 0), (1, 1)]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_no_jobs_ask_for_no_calls() -> None:
    assert list(run_ahead([], str, lambda: pytest.fail("an encoder was loaded for nothing"))) == []


def test_the_meter_counts_padding_and_the_time_without_work() -> None:
    meter = Meter()
    assert (meter.idle_fraction, meter.padding, meter.tokens_per_second) == (0, 1, 0)
    with meter.running([4, 2]):
        time.sleep(0.02)
    time.sleep(0.06)
    with meter.running([6]), meter.running([6]):
        time.sleep(0.02)
    assert (meter.texts, meter.tokens, meter.padded_tokens) == (4, 18, 20)
    assert meter.padding == pytest.approx(20 / 18)
    assert 0.3 < meter.idle_fraction < 0.9
    assert meter.tokens_per_second == pytest.approx(18 / meter.total_seconds)


def test_of_several_processes_each_is_idle_on_its_own() -> None:
    meter = Meter(capacity=2)
    with meter.running([1]):
        time.sleep(0.02)
    assert 0.4 < meter.idle_fraction < 0.6
