"""A reservoir keeps a fair share of a stream."""

from care_qdrant.ingestion.reservoir import Reservoir


def test_every_item_has_the_same_chance() -> None:
    sample = Reservoir[int](1_000, seed=0)
    sample.draw(range(2_500))
    sample.draw(range(2_500, 5_000))
    assert (sample.seen, len(sample.drawn), len(set(sample.drawn))) == (5_000, 1_000, 1_000)
    assert 2_300 < sum(sample.drawn) / 1_000 < 2_700


def test_a_short_stream_is_kept_whole() -> None:
    sample = Reservoir[str](3)
    sample.draw("ab")
    assert sample.drawn == ["a", "b"]
