"""Folders of sentence-transformers in place of a CARE folder: its vectors for both roles, or a refusal."""

import json
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Router

from care_qdrant.errors import ModelError
from care_qdrant.model.care_model import CareModel
from tests import tiny

TEXTS = [*tiny.medical_texts(6), "Fever and COUGH", "短"]
WIDTH = 32
POOLINGS = ("cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens", ("mean", "max"), ("cls", "mean"))
PROMPTS: tuple[dict[str, str] | None, ...] = (
    None,
    {"query": "q: ", "document": "d: "},
    {"passage": "p: "},
    {"query": "q: ", "other": "o: "},
)
AFTER = st.lists(st.sampled_from(["dense", "narrow", "norm"]), max_size=2)


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders whose first module is a small transformer with random weights."""
    root = tmp_path_factory.mktemp("plain")
    return {"bert": tiny.query_tower(root / "bert"), "qwen3": tiny.document_tower(root / "qwen3")}


def heads(names: Sequence[str], width: int) -> tuple[list[torch.nn.Module], int]:
    """Return modules that change a vector, and the dimension of the last one."""
    made: list[torch.nn.Module] = []
    for name in names:
        if name == "norm":
            made.append(LayerNorm(width))
        else:
            made.append(Dense(width, width if name == "dense" else width // 2))
            width = made[-1].out_features  # type: ignore[assignment]
    return made, width


@given(
    base=st.sampled_from(["bert", "qwen3"]),
    pooling=st.sampled_from(POOLINGS),
    include_prompt=st.booleans(),
    after=AFTER,
    routed=st.sampled_from(["no", "no", "no", "after pooling", "whole"]),
    prompts=st.sampled_from(PROMPTS),
    default=st.sampled_from([None, "other"]),
    lower=st.booleans(),
    length=st.sampled_from([8, 32]),
    truncate=st.sampled_from([None, None, None, 8]),
    normalised=st.sampled_from([True, True, False]),
)
@settings(max_examples=25)
def test_vectors_are_those_of_sentence_transformers_or_refused(
    towers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    base: str,
    pooling: str | tuple[str, str],
    include_prompt: bool,
    after: list[str],
    routed: str,
    prompts: dict[str, str] | None,
    default: str | None,
    lower: bool,
    length: int,
    truncate: int | None,
    normalised: bool,
) -> None:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("random") / "model"
    first = Transformer(str(towers[base]), max_seq_length=length, do_lower_case=lower)
    pooled = Pooling(int(first.get_embedding_dimension()), pooling, include_prompt=include_prompt)  # type: ignore[arg-type]
    width = int(pooled.get_embedding_dimension())
    last, dim = heads(after, width)
    tail: list[torch.nn.Module] = [Normalize()] if normalised else []
    modules: list[torch.nn.Module] = [first, pooled, *last, *tail]
    if routed == "after pooling":
        routes = [[*last, Dense(dim, 8)] for _ in range(2)]
        modules = [first, pooled, Router.for_query_document(*routes), *tail]
    elif routed == "whole":
        modules = [Router.for_query_document([first, pooled, *tail], [first, pooled, *tail])]
    known = default if default in (prompts or {}) else None
    made = SentenceTransformer(
        modules=modules, device="cpu", prompts=prompts, default_prompt_name=known, truncate_dim=truncate
    )
    made.save_pretrained(str(folder), create_model_card=False)
    stock = SentenceTransformer(str(folder), device="cpu")
    try:
        model = CareModel.load(folder, device="cpu")
    except ModelError as error:
        assert routed != "no" or truncate is not None or not normalised, error
        return
    assert routed == "no" and truncate is None and normalised
    for own, theirs in ((model.encode_query, stock.encode_query), (model.encode_document, stock.encode_document)):
        expected = theirs(TEXTS, batch_size=2, normalize_embeddings=True)
        assert expected.shape == (len(TEXTS), model.dim)
        np.testing.assert_allclose(own(TEXTS), expected, atol=1e-4)
    shutil.rmtree(folder)


SETTINGS = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json")


def broken(value: Any, at_random: random.Random) -> Any:
    """Return a JSON value with one part taken away or replaced."""
    if isinstance(value, dict | list) and value and at_random.random() < 0.8:
        changed: Any = dict(value) if isinstance(value, dict) else list(value)
        key = at_random.choice(list(changed) if isinstance(changed, dict) else range(len(changed)))
        if at_random.random() < 0.3:
            del changed[key]
        else:
            changed[key] = broken(changed[key], at_random)
        return changed
    return at_random.choice([None, [], {}, "x", -1, 0, True, 1e9, "", [1], {"a": 1}])


@given(name=st.sampled_from(SETTINGS), seed=st.integers(0, 10**6))
@settings(max_examples=150)
def test_broken_settings_are_refused_before_a_model_is_used(towers: dict[str, Path], name: str, seed: int) -> None:
    folder = towers["bert"]
    file = folder / name
    whole = file.read_text(encoding="utf-8")
    try:
        file.write_text(json.dumps(broken(json.loads(whole), random.Random(seed))), encoding="utf-8")
        with suppress(ModelError):
            model = CareModel.load(folder, device="cpu")
            if seed % 10 == 0:
                model.query.open()
    finally:
        file.write_text(whole, encoding="utf-8")
