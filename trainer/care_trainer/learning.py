"""Stage I for ``care learn --base``: a transformer learns vectors that a collection holds, in place of a teacher's.

The core asks for this module by its name, since imports point the other way. Encoders end before the normalisation:
the objective normalises, and the core adds what leads from the learned space to the collection's dimensions.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer
from transformers import AutoConfig, set_seed

from care_qdrant.errors import InputError
from care_qdrant.types import Vectors
from care_trainer.config import Align, Scratch, Tower
from care_trainer.data.collators import Stored
from care_trainer.models import scratch, towers
from care_trainer.models.static import start_from_static
from care_trainer.stages.align import align_objective
from care_trainer.stages.context import fit_student
from care_trainer.training.callbacks import EVALUATIONS_FILE
from care_trainer.training.loop import METRICS_FILE, Job

LAYERS = 2
"""Of a transformer from scratch; the built-in query encoder has as many."""
HEAD_WIDTH = 64
"""Dimensions of an attention head, where the width can be divided by them."""
MINI_BATCH = 16
"""Texts encoded at once, of similar length: little padding."""
FITTED_TEXTS = 2_000
"""Texts on which the projection of a pretrained encoder begins."""
PENALTY = 1.0
"""Of that ridge regression, in texts."""


def pretrained_encoder(base: Path, texts: Sequence[str], vectors: Stored, max_tokens: int) -> SentenceTransformer:
    """Load a pretrained encoder and add a linear layer into the space of stored vectors.

    The layer begins as ridge regression of the vectors on what the encoder gives their texts, in closed form.
    """
    modules, prompts = _modules(base, max_tokens)
    encoder = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name="cosine")
    features = torch.from_numpy(encode(encoder, texts[:FITTED_TEXTS], normalize=False)).double()
    targets = torch.from_numpy(np.asarray(vectors[: len(features)], dtype=np.float64))
    scale = features.norm(dim=1).mean()
    centre, goal = features.mean(dim=0) / scale, targets.mean(dim=0)
    centred = features / scale - centre
    moment = centred.T @ centred + PENALTY * torch.eye(centred.shape[1], dtype=torch.float64)
    mapping = torch.linalg.solve(moment, centred.T @ (targets - goal))
    head = Dense(mapping.shape[0], mapping.shape[1], activation_function=torch.nn.Identity())
    with torch.no_grad():
        head.linear.weight.copy_(mapping.T / scale)
        head.linear.bias.copy_(goal - centre @ mapping)
    return SentenceTransformer(modules=[*modules, head], prompts=prompts, similarity_fn_name="cosine")


def _modules(base: Path, max_tokens: int) -> tuple[list[torch.nn.Module], dict[str, str]]:
    """Return the modules of a base without its normalisation, and its prompts."""
    if not (base / "modules.json").is_file():
        tower = Tower(base=str(base), pooling="mean", max_tokens=max_tokens, projection=True, dtype="float32")
        _require_encoder(base)
        modules = list(towers.build_query(str(base), tower, 1).children())[:2]
        return modules, {}
    try:
        model = SentenceTransformer(str(base), local_files_only=True, model_kwargs={"dtype": torch.float32})
    except (OSError, ValueError) as error:
        raise InputError(f"base {base}: cannot be loaded ({str(error).strip().splitlines()[0]})") from error
    if towers.is_static(model):
        raise InputError(
            f"base {base}: is a table of token vectors, without layers; care learn without --base makes one"
        )
    _require_encoder(base)
    modules = [module for module in model.children() if not isinstance(module, Normalize)]
    if not any(isinstance(module, Pooling) for module in modules):
        raise InputError(f"base {base}: has no Pooling module; expected a model that gives one vector for a text")
    model.max_seq_length = min(max_tokens, model.max_seq_length or max_tokens)
    towers.tokenizer_of(towers.transformer_of(model)).model_max_length = model.max_seq_length
    return modules, towers.prompts_of(model)


def _require_encoder(base: Path) -> None:
    """Refuse an LLM: it would read queries slowly, and has no ONNX export."""
    try:
        model_type = AutoConfig.from_pretrained(base, local_files_only=True).model_type
    except (OSError, ValueError) as error:
        raise InputError(f"base {base}: cannot be loaded ({str(error).strip().splitlines()[0]})") from error
    if not towers.reads_both_ways(model_type):
        raise InputError(
            f"base {base}: is a {model_type!r}, which reads in one direction and has no ONNX export; expected an "
            "encoder such as BERT"
        )


def encoder_from_table(
    tokenizer: Tokenizer, table: Vectors, folder: Path, max_tokens: int, seed: int
) -> SentenceTransformer:
    """Build a small transformer that computes what a table of token vectors does, with layers that can learn more.

    Random token vectors would learn nothing from some thousand texts; those of a table need minutes.
    """
    set_seed(seed)
    marked = Tokenizer.from_str(tokenizer.to_str())
    marked.no_truncation()
    marked.add_special_tokens(scratch.SPECIAL)
    width = table.shape[1]
    heads = next(heads for heads in range(max(1, width // HEAD_WIDTH), 0, -1) if width % heads == 0)
    shape = Scratch(layers=LAYERS, hidden=width, heads=heads, intermediate=4 * width, positions=max_tokens, dropout=0.0)
    tower = Tower(scratch=shape, pooling="mean", max_tokens=max_tokens)
    scratch.write_query_base(tower, marked, folder)
    modules = list(towers.build_query(str(folder), tower, width).children())
    missing = torch.zeros(marked.get_vocab_size() - len(table), width)
    encoder = start_from_static(SentenceTransformer(modules=modules), torch.cat([torch.from_numpy(table), missing]))
    kept = [module for module in encoder.children() if not isinstance(module, Normalize)]
    return SentenceTransformer(modules=kept, similarity_fn_name="cosine")


def encode(encoder: SentenceTransformer, texts: Sequence[str], *, normalize: bool = True) -> Vectors:
    """Return an encoder's vectors of queries, (texts, width)."""
    vectors: Vectors = encoder.encode_query(list(texts), normalize_embeddings=normalize, show_progress_bar=False)
    return vectors


def align(
    encoder: SentenceTransformer,
    texts: Sequence[str],
    vectors: Stored,
    settings: Mapping[str, Any],
    *,
    folder: Path,
    seed: int,
    checkpoint_minutes: float,
    score: Callable[[], float],
    on_step: Callable[[int, int], None],
) -> list[dict[str, float]]:
    """Train an encoder on stored vectors by Stage I, and leave it as it was at its best score."""
    # Half of the time of a step where the processor multiplies bfloat16, and several times as long elsewhere.
    bf16 = torch.cuda.is_available() or bool(torch.cpu._is_avx512_bf16_supported())
    stage = Align(kind="align", bf16=bf16, mini_batch_size=MINI_BATCH, **settings)
    towers.make_trainable(encoder, side="query", lora=False)
    columns = Dataset.from_dict({"text": list(texts), "label": range(len(texts))})
    job = Job(
        stage=stage,
        folder=folder,
        seed=seed,
        checkpoint_minutes=checkpoint_minutes,
        resume=True,
        score=score,
        report=lambda step, steps, _loss, _tokens: on_step(step, steps),
    )
    # Stored vectors are cut to the learned space after they had unit length.
    objective = align_objective(stage, "cut", texts, vectors)
    prompts = {"text": towers.prompts_of(encoder).get("query", "")}
    fit_student(encoder, objective, columns, job, vectors, prompts=prompts, max_length=stage.max_tokens, seed=seed)
    return _history(folder)


def _history(folder: Path) -> list[dict[str, float]]:
    """Return the evaluations of a training, each with the last loss that was logged before it."""
    scores, logged = (
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in (EVALUATIONS_FILE, METRICS_FILE)
    )
    losses = [(row["step"], row["loss"]) for row in logged if "loss" in row]
    return [
        {**row, "loss": next(loss for step, loss in reversed(losses) if step <= row["step"] or step == losses[0][0])}
        for row in scores
    ]
