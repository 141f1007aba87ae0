import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.encoders.batching import read_tokenizer, token_batches
from care_qdrant.errors import ModelError

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


PANICS: dict[str, Any] = {
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    "pre_tokenizer": {"type": "FixedLength", "length": 0},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    },
}


@pytest.mark.parametrize("part", PANICS)
def test_a_tokenizer_whose_rust_code_panics_is_refused(tmp_path: Path, part: str) -> None:
    """Such a panic is no Exception: it passes every handler, and ends threads."""
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    empty = dict.fromkeys(["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"])
    content = {"version": "1.0", "added_tokens": [], "model": model, **empty, part: PANICS[part]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer.json: is not a tokenizer that this version reads"):
        read_tokenizer(tmp_path)
