from collections import Counter

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from care_trainer.data.sampling import EpochSampler
from hypothesis import given
from hypothesis import strategies as st

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


def test_an_epoch_without_a_step_is_refused() -> None:
    with pytest.raises(InputError, match="an epoch draws 0 of 3 rows, fewer than the 1 of a step"):
        EpochSampler(range(3), 2, False, weights=[0.1] * 3)
    with pytest.raises(InputError, match="an epoch draws 21 of 21 rows, fewer than the 32 of a step"):
        EpochSampler(range(21), 16, True, processes=2)


def test_grouping_puts_rows_of_like_length_together() -> None:
    lengths = [(row * 7919) % 101 for row in range(400)]
    grouped = _epoch(EpochSampler(range(400), 8, False, lengths=lengths), 0)
    random = _epoch(EpochSampler(range(400), 8, False), 0)
    assert sorted(row for batch in grouped for row in batch) == list(range(400))

    def padded(batches: list[list[int]]) -> int:
        return sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)

    assert padded(grouped) < 1.05 * sum(lengths) < padded(random)


SOURCES = (np.array([row % 3 for row in range(60)], dtype=np.int32), ["a", "b", "c"])


def _steps(sampler: EpochSampler, processes: int) -> list[list[list[int]]]:
    """Return the batches of each step, one a process, as accelerate hands them out."""
    if processes == 1:  # accelerate then leaves the sampler as it is
        assert len(list(sampler)) == len(sampler)
        return [[batch] for batch in sampler]
    shards = [BatchSamplerShard(sampler, processes, number) for number in range(processes)]
    steps = [list(step) for step in zip(*shards, strict=True)]
    assert all(len(shard) == len(steps) for shard in shards), "the schedule counts the steps that are taken"
    return steps


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 3),
)
def test_no_step_mixes_sources_on_any_number_of_processes(
    sizes: list[int], batch_size: int, processes: int, drop_last: bool, epoch: int
) -> None:
    if drop_last:
        sizes = [size + batch_size * processes for size in sizes]
    codes = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    names = [str(number) for number in range(len(sizes))]
    sampler = EpochSampler(
        range(len(codes)), batch_size, drop_last, lengths=codes, sources=(codes, names), processes=processes
    )
    sampler.set_epoch(epoch)
    steps = _steps(sampler, processes)
    assert all(len({codes[row] for batch in step for row in batch}) == 1 for step in steps)
    seen = Counter(row for step in steps for batch in step for row in batch)
    if not drop_last:
        assert len(seen) == len(codes)
    if drop_last or processes == 1:
        assert set(seen.values()) == {1}


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    weights=st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.5]), min_size=4, max_size=4),
    batch_size=st.integers(1, 4),
    processes=st.integers(1, 3),
    by_source=st.booleans(),
)
def test_every_weight_of_a_small_source_makes_an_epoch_as_long_as_it_says(
    sizes: list[int], weights: list[float], batch_size: int, processes: int, by_source: bool
) -> None:
    codes = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    sources = (codes, [str(number) for number in range(len(sizes))]) if by_source else None
    of_row = [weights[code] for code in codes]
    try:
        sampler = EpochSampler(
            range(len(codes)), batch_size, False, of_row, codes, sources=sources, processes=processes
        )
    except InputError:  # an epoch without a row
        assert sum(of_row) < len(sizes)
        return
    assert len(_epoch(sampler, 1)) == len(sampler) > 0


def test_sources_alternate_at_random_and_weights_count() -> None:
    weights = [1.0 if row % 3 else 0.5 for row in range(60)]
    sampler = EpochSampler(range(60), 4, False, weights, lengths=range(60), sources=SOURCES)
    orders = set()
    for epoch in range(5):
        batches = _epoch(sampler, epoch)
        rows = [row for batch in batches for row in batch]
        assert len(rows) == len(set(rows)) == 50
        orders.add(tuple(batch[0] % 3 for batch in batches))
    assert len(orders) > 1


def test_two_processes_share_the_batches_of_one_of_twice_the_size() -> None:
    double = _epoch(EpochSampler(range(60), 4, True, sources=SOURCES, processes=2), 3)
    single = _epoch(EpochSampler(range(60), 8, True, sources=SOURCES), 3)
    assert [one + other for one, other in zip(double[::2], double[1::2], strict=True)] == single


def test_a_source_that_fills_no_step_is_refused_where_it_would_never_be_seen() -> None:
    with pytest.raises(InputError, match=r"source 'a': has 20 rows an epoch, fewer than the 32 of a step"):
        EpochSampler(range(60), 16, True, sources=SOURCES, processes=2)
    assert len(_epoch(EpochSampler(range(60), 32, False, sources=SOURCES), 0)) == 3
