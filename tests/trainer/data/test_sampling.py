from collections import Counter

import numpy as np
import pytest
from care_trainer.data.sampling import EpochSampler

from care_qdrant.errors import InputError


def _epoch(sampler: EpochSampler, epoch: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def test_an_epoch_depends_on_seed_and_number_alone() -> None:
    first = EpochSampler(range(50), 8, False, seed=3)
    _epoch(first, 0)
    again = EpochSampler(range(50), 8, False, seed=3)
    assert _epoch(first, 1) == _epoch(again, 1)
    assert _epoch(first, 1) != _epoch(first, 2)
    assert _epoch(first, 1) != _epoch(EpochSampler(range(50), 8, False, seed=4), 1)


def test_without_weights_every_row_comes_once() -> None:
    batches = _epoch(EpochSampler(range(50), 8, False), 0)
    assert sorted(row for batch in batches for row in batch) == list(range(50))
    assert len(batches) == len(EpochSampler(range(50), 8, False)) == 7
    assert [len(batch) for batch in _epoch(EpochSampler(range(50), 8, True), 0)] == [8] * 6


def test_a_weight_is_how_often_a_row_comes_and_fractions_rotate() -> None:
    sampler = EpochSampler(range(30), 4, False, weights=[0.0] * 10 + [0.25] * 16 + [2.0] * 4)
    seen: Counter[int] = Counter()
    for epoch in range(40):
        rows = [row for batch in _epoch(sampler, epoch) for row in batch]
        assert len(rows) == 12
        counts = Counter(rows)
        assert all(counts[row] == 2 for row in range(26, 30))
        assert all(counts[row] <= 1 for row in range(10, 26))
        seen.update(rows)
    assert not any(seen[row] for row in range(10))
    assert all(seen[row] for row in range(10, 26))


def test_grouping_puts_rows_of_like_length_together() -> None:
    lengths = [(row * 7919) % 101 for row in range(400)]
    grouped = _epoch(EpochSampler(range(400), 8, False, lengths=lengths), 0)
    random = _epoch(EpochSampler(range(400), 8, False), 0)
    assert sorted(row for batch in grouped for row in batch) == list(range(400))

    def padded(batches: list[list[int]]) -> int:
        return sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)

    assert padded(grouped) < 1.05 * sum(lengths) < padded(random)


SOURCES = (np.array([row % 3 for row in range(60)], dtype=np.int32), ["a", "b", "c"])


@pytest.mark.parametrize("processes", [1, 2])
def test_batches_by_source_never_mix_also_over_processes(processes: int) -> None:
    weights = [1.0 if row % 3 else 0.5 for row in range(60)]
    sampler = EpochSampler(
        range(60), 4, processes > 1, weights, lengths=range(60), sources=SOURCES, processes=processes
    )
    orders = []
    for epoch in range(5):
        batches = _epoch(sampler, epoch)
        assert len(batches) == len(sampler)
        steps = [batches[at : at + processes] for at in range(0, len(batches), processes)]
        for step in steps:
            assert len({row % 3 for batch in step for row in batch}) == 1
        orders.append([step[0][0] % 3 for step in steps])
        rows = [row for batch in batches for row in batch]
        assert len(rows) == len(set(rows)) == (50 if processes == 1 else 8 * (10 // 8 + 2 * (20 // 8)))
    assert len({tuple(order) for order in orders}) > 1, "the sources alternate at random"


def test_two_processes_share_the_batches_of_one_of_twice_the_size() -> None:
    double = _epoch(EpochSampler(range(60), 4, True, sources=SOURCES, processes=2), 3)
    single = _epoch(EpochSampler(range(60), 8, True, sources=SOURCES), 3)
    assert [one + other for one, other in zip(double[::2], double[1::2], strict=True)] == single


def test_a_source_that_fills_no_step_is_refused_where_it_would_never_be_seen() -> None:
    with pytest.raises(InputError, match=r"source 'a': has 20 rows an epoch, fewer than the 32 of a step"):
        EpochSampler(range(60), 16, True, sources=SOURCES, processes=2)
    assert len(_epoch(EpochSampler(range(60), 32, False, sources=SOURCES), 0)) == 3
