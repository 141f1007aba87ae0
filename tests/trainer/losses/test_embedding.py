from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from care_trainer.config import Tower
from care_trainer.data.read import text_key
from care_trainer.losses.embedding import EmbeddingLoss, Features, hide_tokens, split_by_tokens, without_keys
from care_trainer.losses.objectives import AlignObjective, InfoNce, Matryoshka
from care_trainer.models import towers
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import _create_minibatch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from tests.trainer.tiny_run import pairs


def _columns(model: SentenceTransformer, joined: bool = False) -> list[Features]:
    rows = pairs()[:10]
    texts = [[row["query"] for row in rows], [row["positive"] * (1 + at % 3) for at, row in enumerate(rows)]]
    keys = [torch.tensor(list(map(text_key, column))) for column in texts]
    if not joined:
        return [{**model.preprocess(column), "keys": own} for column, own in zip(texts, keys, strict=True)]
    sides = zip(texts, keys, ("query", "document"), strict=True)
    return [{**model.preprocess(column, task=task), "task": task, "keys": own} for column, own, task in sides]


def _gradients(
    loss: torch.nn.Module, columns: list[Features], labels: torch.Tensor | None = None
) -> tuple[float, dict[str, torch.Tensor]]:
    loss.zero_grad()
    value = loss([dict(column) for column in columns], labels)
    (value / 2).backward()  # what gradient accumulation over two steps does
    return value.item(), {name: p.grad.clone() for name, p in loss.named_parameters() if p.grad is not None}


def test_sorting_and_mini_batches_change_nothing(query_folder: Path) -> None:
    model = towers.load(query_folder).eval()
    columns = _columns(model)
    ours, our_gradients = _gradients(EmbeddingLoss(model, InfoNce(0.05), mini_batch_size=3), columns)
    theirs, their_gradients = _gradients(
        MultipleNegativesRankingLoss(model, scale=20.0), list(map(without_keys, columns))
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, rtol=1e-3, atol=1e-5)


CACHED: dict[str, tuple[str, Callable[[], torch.nn.Module]]] = {
    "info-nce": ("query", lambda: InfoNce(0.05, learn=True, symmetric=True, margin=0.2)),
    "matryoshka": ("query", lambda: Matryoshka(InfoNce(0.05), [32, 16])),
    "both towers": ("both", lambda: InfoNce(0.05)),
    "align": ("labels", lambda: AlignObjective(InfoNce(0.05))),
}


@pytest.mark.parametrize("case", CACHED)
@pytest.mark.parametrize("limits", [{"mini_batch_size": 3}, {"mini_batch_tokens": 40}])
def test_cached_is_uncached(query_folder: Path, document_folder: Path, case: str, limits: dict[str, int]) -> None:
    kind, objective = CACHED[case]
    model = towers.load(query_folder)
    model = (towers.pair(model, towers.load(document_folder)) if kind == "both" else model).eval()
    columns = _columns(model, joined=kind == "both")
    labels = torch.randn(10, 32).half() if kind == "labels" else None
    columns = columns if labels is None else columns[:1]
    plain, plain_gradients = _gradients(EmbeddingLoss(model, objective(), **limits), columns, labels)
    cached, cached_gradients = _gradients(EmbeddingLoss(model, objective(), cached=True, **limits), columns, labels)
    assert cached == pytest.approx(plain, rel=1e-6)
    assert cached_gradients.keys() == plain_gradients.keys()
    sides = {name.split(".")[3] for name in plain_gradients if "sub_modules" in name}
    assert sides == ({"query", "document"} if kind == "both" else set())
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(cached_gradients[name], gradient, rtol=1e-3, atol=1e-6)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    tokens=st.integers(1, 200),
    left=st.booleans(),
)
def test_no_part_of_a_column_has_more_tokens_than_asked_for(lengths: list[int], tokens: int, left: bool) -> None:
    """One long text among many short ones is what sentence-transformers' own count lets through."""
    lengths = sorted(lengths, reverse=True)
    mask = torch.tensor([[1] * length + [0] * (lengths[0] - length) for length in lengths])
    mask = mask.flip(1) if left else mask
    column = {"attention_mask": mask, "input_ids": torch.arange(mask.numel()).reshape(mask.shape), "task": "query"}
    parts = split_by_tokens(column, tokens)
    assert torch.equal(torch.cat([part["input_ids"] for part in parts]), column["input_ids"])
    for part in parts:
        rows = len(part["attention_mask"])
        passed = _create_minibatch(part, 0, rows)["input_ids"].numel()
        assert part["task"] == "query" and (passed <= tokens or rows == 1)


@pytest.mark.parametrize("cached", [False, True])
def test_a_pass_has_no_more_tokens_than_asked_for(query_folder: Path, cached: bool) -> None:
    model = towers.load(query_folder).eval()
    columns = [without_keys(column) for column in _columns(model)]
    keys = torch.arange(len(columns[0]["input_ids"]))
    passed: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: passed.append(inputs[0]["input_ids"].numel()))
    loss = EmbeddingLoss(model, InfoNce(0.05), mini_batch_tokens=70, cached=cached)
    loss([{**column, "keys": keys} for column in columns]).backward()
    assert len(passed) > 4 and max(passed) <= 70


@pytest.fixture
def mixed(document_folder: Path) -> SentenceTransformer:
    """A table of token vectors for queries beside a transformer for documents."""
    torch.manual_seed(0)
    tokenizer = towers.tokenizer_of(towers.transformer_of(towers.load(document_folder))).backend_tokenizer
    table = StaticEmbedding(tokenizer, embedding_dim=32)
    query = towers.build_static(table, Tower(static=32), 32)
    return towers.pair(query, towers.load(document_folder)).eval()


@pytest.mark.parametrize("cached", [False, True])
def test_a_static_query_encoder_trains_beside_a_transformer(mixed: SentenceTransformer, cached: bool) -> None:
    columns = _columns(mixed, joined=True)
    ours, our_gradients = _gradients(
        EmbeddingLoss(mixed, InfoNce(0.05, learn=True), mini_batch_size=3, cached=cached), columns
    )
    theirs, their_gradients = _gradients(
        MultipleNegativesRankingLoss(mixed, scale=20.0), list(map(without_keys, columns))
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert our_gradients.pop("objective.log_scale").abs() > 0
    assert our_gradients.keys() == their_gradients.keys()
    assert {name.split(".")[3] for name in their_gradients if "sub_modules" in name} == {"query", "document"}
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, rtol=1e-3, atol=1e-5)


def test_hidden_tokens_are_neither_the_first_nor_the_last(document_folder: Path) -> None:
    column = towers.load(document_folder).preprocess(["高血压吃什么好", "哮喘的检查：可以做血常规、超声和影像学检查"])
    torch.manual_seed(0)
    hidden = hide_tokens(column, 0.5)["attention_mask"]
    mask = column["attention_mask"]
    last = mask.sum(dim=1) - 1
    assert hidden[:, 0].all() and hidden[torch.arange(2), last].all()
    assert hidden.sum() < mask.sum()
    assert torch.equal(hidden & mask, hidden)
    assert hide_tokens(column, 0.0) is column
