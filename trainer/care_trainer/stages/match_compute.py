"""The cost of a stage, so that a control without Stage I can spend the same on Stage II.

The paper has no such control. Cost is counted in texts that pass an encoder, or in floating-point operations: two for
each weight of a matrix and token and four for each pair of tokens that attend to each other, or for a static encoder
one for each value of a token's vector, times the passes of training. Token counts are those of a sample of the texts,
cut as in training.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from math import ceil
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from torch import nn

from care_trainer.config import Align, Joint, Stage
from care_trainer.data.table import Rows
from care_trainer.distributed import processes
from care_trainer.models import towers
from care_trainer.models.static import static_table
from care_trainer.stages.context import Context

SAMPLE_ROWS = 2000
"""Texts whose tokens are counted."""


def match_compute(context: Context, query: SentenceTransformer, document: SentenceTransformer) -> Joint:
    """Return Stage II, made longer by the cost of the Stage I that its ``instead_of`` names."""
    stage = context.stage
    assert isinstance(stage, Joint)
    if stage.instead_of is None:
        return stage
    rows = context.pair_rows()
    if stage.cost == "texts":
        extra = _stage_one_texts(context, stage.instead_of) / (2 + stage.hard_negatives)
    else:
        extra = _stage_one(context, stage.instead_of, query, document) / _pair(stage, rows, query, document)
    if stage.max_steps is not None:
        return replace(stage, max_steps=stage.max_steps + ceil(extra / _step_rows(stage)))
    return replace(stage, epochs=stage.epochs + extra / float(rows.weights.sum()))


def forward_operations(model: SentenceTransformer, tokens: int) -> float:
    """Return the floating-point operations of one forward pass of a text."""
    if towers.is_static(model):
        return float(static_table(model).shape[1] * tokens)
    return transformer_operations(towers.transformer_of(model).model, tokens)


def transformer_operations(transformer: Any, tokens: float) -> float:
    """Return the floating-point operations of one forward pass of a transformer over a text."""
    weights = sum(
        module.weight.numel()
        for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear) and "pooler" not in name
    )
    config = transformer.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = config.num_hidden_layers * config.num_attention_heads * head
    return float(2 * weights * tokens + 4 * attention * tokens**2)


def _stage_one(context: Context, align: Align, query: SentenceTransformer, document: SentenceTransformer) -> float:
    """Return the operations of a whole Stage I: the query encoder's training, and the teacher's vectors, once."""
    rows = replace(context, stage=align).text_rows(align.sides)
    texts = _sample(rows, "text")
    student = _mean(query, texts, align.max_tokens) * _passes(align, query)
    return student * _rows_seen(align, rows) + _mean(document, texts, None) * len(rows)


def _stage_one_texts(context: Context, align: Align) -> float:
    return _rows_seen(align, replace(context, stage=align).text_rows(align.sides))


def _pair(stage: Joint, rows: Rows, query: SentenceTransformer, document: SentenceTransformer) -> float:
    """Return the operations of one row of Stage II: its query, and all its documents."""
    positives, negatives = _sample(rows, "positive"), _sample(rows, "negatives")
    # A row with too few negatives repeats its positive.
    others = [texts[: stage.hard_negatives] for texts in negatives]
    others = [[*own, *[text] * (stage.hard_negatives - len(own))] for own, text in zip(others, positives, strict=True)]
    documents = _mean(document, positives, stage.max_tokens)
    if stage.hard_negatives:
        documents += stage.hard_negatives * _mean(document, [*chain(*others)], stage.max_tokens)
    asked = _mean(query, _sample(rows, "query"), stage.max_tokens)
    return asked * _passes(stage, query) + documents * _passes(stage, document)


def _passes(stage: Stage, model: SentenceTransformer) -> float:
    """Return the cost of training in forward passes: two more to train all weights, one more for adapters alone."""
    trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    backward = 0 if not trains else 1 if all("lora_" in name for name in trains) else 2
    return 1 + backward + stage.cached + (stage.gradient_checkpointing and backward > 0)


def _rows_seen(stage: Stage, rows: Rows) -> float:
    if stage.max_steps is not None:
        return stage.max_steps * _step_rows(stage)
    return stage.epochs * float(rows.weights.sum())


def _step_rows(stage: Stage) -> int:
    return stage.rows_of_process(processes().num_processes) * stage.accumulate * int(processes().num_processes)


def _sample(rows: Rows, column: str) -> list[Any]:
    step = -(-len(rows) // SAMPLE_ROWS)
    texts: Iterable[Any] = rows.columns.select(range(0, len(rows), step))[column]
    return list(texts)


def _mean(model: SentenceTransformer, texts: list[str], max_tokens: int | None) -> float:
    if towers.is_static(model):
        lengths = [len(encoding.ids) for encoding in model.tokenizer.encode_batch(texts, add_special_tokens=False)]
    else:
        tokenizer = towers.tokenizer_of(towers.transformer_of(model))
        longest = min(tokenizer.model_max_length, max_tokens or tokenizer.model_max_length)
        lengths = [min(len(ids), longest) for ids in tokenizer(texts, truncation=True)["input_ids"]]
    return float(np.mean([forward_operations(model, tokens) for tokens in lengths]))
