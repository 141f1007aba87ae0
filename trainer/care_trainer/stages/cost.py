"""What a run will cost before it starts: operations and the memory of a step, counted from the shapes of its models.

The models are built without weights, on PyTorch's meta device. Memory is that of one process with mini-batches of the
longest texts, see `step_memory`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from transformers import AutoConfig, AutoModel, BertConfig, Qwen3Config

from care_qdrant.encoders.architecture import native_folder
from care_qdrant.errors import InputError
from care_trainer.config import (
    Align,
    Causal,
    Contrastive,
    Distill,
    Joint,
    RetroMae,
    Run,
    Side,
    Stage,
    Tower,
    stage_name,
)
from care_trainer.config.stages import PairStage
from care_trainer.data.read import iter_pairs, iter_texts
from care_trainer.stages.match_compute import transformer_operations
from care_trainer.stages.step_memory import Encoder, step_bytes

Texts = Mapping[Side, Mapping[Side, float]]
"""Queries and documents of a row, by the encoder that reads them."""
TOKENS_OF_A_CHARACTER = 0.7
"""Tokens of a Chinese character by the vocabularies of Qwen3 and gte-multilingual, about."""


@dataclass(frozen=True)
class Shape:
    """An encoder without weights."""

    model: Any
    """Transformer on the meta device."""
    dtype_bytes: int
    """Bytes of a frozen weight."""
    tower: Tower
    """Settings of the side."""

    @property
    def parameters(self) -> int:
        """Weights of the encoder, adapters aside."""
        return sum(parameter.numel() for parameter in self.model.parameters())


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage."""

    stage: str
    operations: float
    """Floating-point operations of all processes."""
    bytes: int
    """Peak memory of one process."""


def stage_cost(
    run: Run, stage: Stage, rows: float, tokens: Mapping[Side, float], shapes: Mapping[Side, Shape], processes: int = 1
) -> StageCost:
    """Count the cost of a stage."""
    trained, encoded = _texts(stage)
    epochs = stage.epochs
    if stage.max_steps is not None:
        epochs = stage.max_steps * stage.rows_of_process(1) * stage.accumulate / rows
    operations = 0.0
    for side, texts in trained.items():
        forward = sum(count * transformer_operations(shapes[side].model, tokens[text]) for text, count in texts.items())
        backward = 2 if shapes[side].tower.lora is None else 1
        operations += epochs * rows * forward * (1 + backward + stage.cached + stage.gradient_checkpointing)
    for side, texts in encoded.items():
        forward = sum(count * transformer_operations(shapes[side].model, tokens[text]) for text, count in texts.items())
        operations += rows * forward
    if isinstance(stage, RetroMae | Causal):
        (side,) = trained
        config = shapes[side].model.config
        predicted = tokens["document"] * (1 + stage.encoder_masked if isinstance(stage, RetroMae) else 1)
        operations += epochs * rows * predicted * 2 * config.vocab_size * config.hidden_size * 4
    frozen = max((shapes[side].parameters * shapes[side].dtype_bytes for side in encoded), default=0)
    return StageCost(stage_name(stage), operations, max(frozen, peak_bytes(run, stage, shapes, processes)))


def peak_bytes(run: Run, stage: Stage, shapes: Mapping[Side, Shape], processes: int = 1) -> int:
    """Return the peak memory of a training step of one process, in bytes."""
    trained, _ = _texts(stage)
    if not trained:
        return 0
    encoders, lengths = {}, {}
    for side in trained:
        tower = run.query if side == "query" else run.document
        frozen = torch.bfloat16 if shapes[side].dtype_bytes == 2 else torch.float32
        encoders[side] = Encoder(shapes[side].model.config, tower, frozen)
        lengths[side] = min(tower.max_tokens, stage.max_tokens or tower.max_tokens)
    return step_bytes(stage, encoders, lengths, processes)


def _texts(stage: Stage) -> tuple[Texts, Texts]:
    """Return the texts of a row by the encoder that trains on them, and by the one that encodes them once."""
    documents = 1.0 + stage.hard_negatives if isinstance(stage, PairStage) else 1.0
    both: Mapping[Side, float] = {"query": 1.0, "document": documents}
    if isinstance(stage, RetroMae):
        return {"query": {"document": 1.0}}, {}
    if isinstance(stage, Causal):
        return {"document": {"document": 1.0}}, {}
    if isinstance(stage, Contrastive):
        return {"document" if stage.kind == "document" else "query": both}, {}
    if isinstance(stage, Align):
        return {"query": {"query": 1.0}}, {"document": {"query": 1.0}}
    if isinstance(stage, Joint):
        own: dict[Side, Mapping[Side, float]] = {"query": {"query": 1.0}, "document": {"document": documents}}
        frozen: Texts = {"document": own.pop("document")} if stage.freeze_document else {}
        return own, frozen
    return ({"query": both}, {"document": both}) if isinstance(stage, Distill) else ({}, {})


def describe_cost(run: Run, processes: int, tflops: float) -> str:
    """Return a table of rows, operations, hours and memory of each stage, and of the whole run."""
    shapes: dict[Side, Shape] = {"query": load_shape(run, "query"), "document": load_shape(run, "document")}
    lines = [f"{'stage':<16}{'rows':>12}{'operations':>14}{'GPU hours':>11}{'GiB a GPU':>11}"]
    hours = 0.0
    for stage in run.stage:
        rows, tokens = _measured(run, stage)
        cost = stage_cost(run, stage, rows, tokens, shapes, processes)
        own = cost.operations / (tflops * 1e12) / 3600
        hours += own
        lines.append(f"{cost.stage:<16}{rows:>12,}{cost.operations:>14.2e}{own:>11.1f}{cost.bytes / 2**30:>11.1f}")
    lines.append(f"in all {hours:.1f} GPU hours at {tflops:g} TFLOP/s, {hours / processes:.1f} hours on {processes}")
    return "\n".join(lines)


def _measured(run: Run, stage: Stage) -> tuple[int, dict[Side, float]]:
    """Return the rows of a stage's data, and the mean tokens of a query and of a document."""
    if not stage.data:
        return 0, {"query": 0.0, "document": 0.0}
    data, root = run.data[stage.data], Path(run.data_root)
    limits = {"query": run.query.max_tokens, "document": run.document.max_tokens}
    rows, characters = 0, {"query": 0, "document": 0}
    if isinstance(stage, Align | RetroMae | Causal) and not (isinstance(stage, Align) and stage.pairs):
        for text in iter_texts(data, root, joined=isinstance(stage, RetroMae) and stage.joined):
            rows += 1
            characters = {side: count + len(text.text) for side, count in characters.items()}
    else:
        for pair in iter_pairs(data, root):
            rows += 1
            characters["query"] += len(pair.query)
            characters["document"] += len(pair.positive)
    return rows, {
        "query": min(TOKENS_OF_A_CHARACTER * characters["query"] / rows, limits["query"]),
        "document": min(TOKENS_OF_A_CHARACTER * characters["document"] / rows, limits["document"]),
    }


def load_shape(run: Run, side: Side) -> Shape:
    """Build an encoder without weights."""
    tower = run.query if side == "query" else run.document
    config = _config(run, tower, side)
    with torch.device("meta"):
        model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    stored = tower.dtype or str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return Shape(model, 2 if stored in ("bfloat16", "float16") else 4, tower)


def _config(run: Run, tower: Tower, side: Side) -> Any:
    if tower.base is None:
        shape, words = tower.scratch, run.vocabulary.size if run.vocabulary else 0
        if shape is None:
            return BertConfig(
                vocab_size=words, hidden_size=tower.static or 1, num_hidden_layers=0, num_attention_heads=1
            )
        common: dict[str, Any] = {
            "vocab_size": words,
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.intermediate,
        }
        if side == "query":
            return BertConfig(**common)
        keys = shape.key_value_heads or shape.heads
        return Qwen3Config(**common, num_key_value_heads=keys, head_dim=shape.hidden // shape.heads)
    local = Path(tower.base) / "config.json"
    try:
        path = local if local.is_file() else Path(hf_hub_download(tower.base, "config.json", revision=tower.revision))
        with native_folder(path.parent) as folder:
            return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"base {tower.base}: its config.json cannot be reached ({reason})") from error
