from collections import Counter

from care_trainer.data.sampling import EpochSampler


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
