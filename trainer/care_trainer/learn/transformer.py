"""A transformer as query encoder: from a pretrained one, from a table that is trained first, or from an earlier run.

The training is Stage I of `care_trainer`.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from care_qdrant.encoders.torch import no_progress_bars
from care_qdrant.errors import InputError, needs_extra
from care_qdrant.model.card import CARD_FILE
from care_qdrant.model.hub import find_folder
from care_qdrant.model.integrity import list_files, sha256
from care_trainer.learn.checks import require_learnable
from care_trainer.learn.earlier import Earlier, table_of
from care_trainer.learn.learn import Progress
from care_trainer.learn.queries import Questions
from care_trainer.learn.settings import SMALL, LearnSettings
from care_trainer.learn.table import EVALUATIONS, PATIENCE
from care_trainer.learn.tokens import tokenize
from care_trainer.learn.training import Split, Trained, reduced, train


def load_trainer() -> ModuleType:
    """Return the module that trains transformers, which needs an extra of its own."""
    with needs_extra("train", "care learn --base"):
        import care_trainer.learning
    return care_trainer.learning


def find_base(base: str) -> Path | None:
    """Return the folder of a base; None for a small transformer, which has none."""
    if base == SMALL:
        return None
    folder = find_folder(base)
    if (folder / CARD_FILE).is_file():
        return folder / "query"
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise InputError(
            f"--base {base}: holds neither modules.json nor config.json; expected a sentence-transformers model, a "
            "BERT-like transformer or a CARE folder"
        )
    return folder


@no_progress_bars()
def train_transformer(
    split: Split,
    log: Questions | None,
    settings: LearnSettings,
    where: str,
    start: Path | Earlier | None,
    state: Path,
    on_progress: Progress,
) -> Trained:
    """Train a transformer on the stored vectors, and measure it on the held-out documents, which it does not learn."""
    trainer = load_trainer()
    state.mkdir(parents=True, exist_ok=True)
    texts, vectors = [split.texts[row] for row in split.train], split.pairs.vectors[split.train]
    tokens = "base"
    if isinstance(start, Earlier):
        encoder, tokens = start.encoder, "earlier"
    elif start is not None:
        encoder = trainer.pretrained_encoder(start, texts, vectors, settings.align.max_tokens)
    else:
        table = train(
            split,
            log,
            settings,
            where,
            None,
            state,
            lambda done, total: on_progress("training the token vectors", done, total),
            with_held_out=False,
        )
        folder, tokens = state / "small", table.tokens
        encoder = trainer.encoder_from_table(
            table.tokenizer, table_of(table.encoder), folder, settings.align.max_tokens, settings.seed
        )
    tokenizer = _plain_tokenizer(encoder)
    whole = tokenize(tokenizer, texts)
    require_learnable(vectors, whole, tokenizer.get_vocab_size(), where)
    known = np.flatnonzero(whole.lengths > 0)
    texts, vectors = [texts[row] for row in known], vectors[known]
    if log is not None:
        half = len(log.texts) // 2
        texts = [*texts, *log.texts[:half]]
        vectors = np.concatenate([vectors, reduced(log.vectors[:half], split.pairs.basis)])
    options = _stage(settings, len(texts))
    before = split.score(trainer.encode(encoder, split.questions))
    history = trainer.align(
        encoder,
        texts,
        vectors,
        options,
        folder=state / f"align-{_digest(split, settings, start, options)}",
        seed=settings.seed,
        checkpoint_minutes=settings.align.checkpoint_minutes,
        score=lambda: split.score(trainer.encode(encoder, split.questions)).mrr,
        on_step=lambda done, total: on_progress("training", done, total),
    )
    questions = trainer.encode(encoder, split.questions)
    return Trained(
        encoder=encoder,
        tokenizer=tokenizer,
        tokens=tokens,
        built_in_start=False,
        trained_again=False,
        before=before,
        held_out=split.score(questions),
        questions=questions,
        steps=int(history[-1]["step"]),
        best_step=int(max(history, key=lambda row: (row["score"], -row["step"]))["step"]),
        history=history,
    )


def _stage(settings: LearnSettings, texts: int) -> dict[str, Any]:
    """Return the settings of Stage I for so many texts, by their names in a training configuration."""
    align = settings.align
    steps = max(1, min(align.max_steps, align.epochs * -(-texts // align.batch)))
    return {
        "epochs": float(align.epochs),
        "max_steps": steps,
        "batch_size": align.batch,
        "learning_rate": align.learning_rate,
        "temperature": settings.temperature,
        "negatives": settings.negatives,
        "token_dropout": align.token_dropout,
        "max_tokens": align.max_tokens,
        "evaluate_steps": max(1, steps // EVALUATIONS),
        "patience": PATIENCE,
    }


def _plain_tokenizer(encoder: SentenceTransformer) -> Tokenizer:
    """Return an encoder's tokenizer without padding."""
    tokenizer = Tokenizer.from_str(encoder.tokenizer.backend_tokenizer.to_str())
    tokenizer.no_padding()
    return tokenizer


def _digest(split: Split, settings: LearnSettings, start: Path | Earlier | None, options: Mapping[str, Any]) -> str:
    """Return what names the checkpoints of a run, so that another run does not continue from them."""
    files = {}
    if isinstance(start, Path):
        files = {path: sha256(start / path) for path in list_files(start, start)}
    elif start is not None:
        files = {"seen": hashlib.sha256(start.seen.tobytes()).hexdigest(), "folder": start.fingerprint}
    content = json.dumps([split.digest(settings), files, dict(options)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
