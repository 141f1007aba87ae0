import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.encoders.batching import token_batches

LENGTHS = st.lists(st.integers(1, 600), max_size=80)


@given(LENGTHS, st.integers(1, 5_000))
def test_each_text_is_in_one_batch_and_no_batch_costs_more_than_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(token_batches(lengths, budget))

    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = max(lengths[index] for index in batch) * len(batch)
        assert padded <= budget or len(batch) == 1


@given(LENGTHS)
def test_the_longest_texts_come_first_so_that_memory_runs_out_at_once_or_never(lengths: list[int]) -> None:
    order = [lengths[index] for batch in token_batches(lengths, 1_024) for index in batch]

    assert order == sorted(lengths, reverse=True)


@pytest.mark.parametrize("batch_tokens", [2_048, 16_384])
def test_a_window_of_documents_pays_little_for_padding(batch_tokens: int) -> None:
    """Lengths as those of passages, few of them long, in a window of an ingestion; budgets of a CPU and of a GPU."""
    drawn = np.random.default_rng(0).lognormal(np.log(150) - 0.32, 0.8, 4_096)
    lengths = [int(length) for length in np.clip(drawn, 8, 512)]
    batches = token_batches(lengths, batch_tokens)
    padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in batches)

    assert padded / sum(lengths) < 1.02
