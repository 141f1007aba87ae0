"""CPU time of training: stored against recomputed teacher vectors, and our loop against a plain script.

Both are paired measurements in CPU seconds, which other programs on the machine disturb least.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from care_trainer.config import Align, Contrastive, Run, Scratch, Stage, Tower, Vocabulary
from care_trainer.data.collators import PairCollator, TeacherCollator
from care_trainer.data.read import read_rows
from care_trainer.data.table import Rows
from care_trainer.losses.embedding import EmbeddingLoss
from care_trainer.losses.objectives import AlignObjective, InfoNce
from care_trainer.models import scratch, towers
from care_trainer.models.teacher import teacher_vectors
from care_trainer.training.context import TrainingContext
from care_trainer.training.loop import fit
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardCallback
from transformers import set_seed

from .measured import output_option, save_measured

DIM = 128
BATCH = 64
QUERY = Tower(scratch=Scratch(layers=2, hidden=DIM, heads=4, intermediate=4 * DIM), pooling="mean", max_tokens=256)
DOCUMENT = Tower(scratch=Scratch(layers=8, hidden=256, heads=4, intermediate=768), pooling="lasttoken", max_tokens=256)


@dataclass(frozen=True)
class Sides:
    """The two encoders on disk, and their parameter counts without embeddings."""

    query: Path
    document: Path
    query_parameters: int
    document_parameters: int


def build_sides(texts: Sequence[str], folder: Path) -> Sides:
    """Write a small query encoder, and a document encoder with at least ten times the parameters in its layers."""
    set_seed(0)
    tokenizer = scratch.train_tokenizer(Vocabulary(data="", size=4000), texts)
    scratch.write_base(QUERY, "query", tokenizer, folder / "query-base")
    scratch.write_base(DOCUMENT, "document", tokenizer, folder / "document-base")
    query = towers.build_query(str(folder / "query-base"), QUERY, DIM)
    document = towers.build_document(str(folder / "document-base"), DOCUMENT, DIM)
    query.save_pretrained(str(folder / "query"), create_model_card=False)
    document.save_pretrained(str(folder / "document"), create_model_card=False)
    return Sides(folder / "query", folder / "document", _layer_parameters(query), _layer_parameters(document))


def stored_teacher_seconds(sides: Sides, texts: Sequence[str], epochs: int, folder: Path) -> float:
    """Train Stage I on stored vectors; return the CPU time, which includes the making of the vectors."""

    def train() -> None:
        vectors = teacher_vectors(
            lambda: towers.load(sides.document), sides.document, texts, folder / "teacher", dim=DIM
        )
        student = towers.load(sides.query)
        _align(student, texts, epochs, folder, TeacherCollator(vectors, preprocess_fn=student.preprocess))

    return _cpu_seconds(train)


def recomputed_teacher_seconds(sides: Sides, texts: Sequence[str], epochs: int, folder: Path) -> float:
    """Train Stage I the same way, with a teacher that encodes each batch; return the CPU time."""

    def train() -> None:
        student = towers.load(sides.query)
        collator = _RecomputingCollator(towers.load(sides.document), preprocess_fn=student.preprocess)
        _align(student, texts, epochs, folder, collator)

    return _cpu_seconds(train)


def our_seconds(sides: Sides, pairs: Dataset, folder: Path) -> float:
    """Train the query encoder for one epoch of pairs with our loop; return the CPU time."""
    model = towers.load(sides.query)
    loss = EmbeddingLoss(model, InfoNce(0.05), mini_batch_size=BATCH // 4)
    stage = Contrastive(kind="supervised", batch_size=BATCH, warmup=0.0)
    collator = PairCollator(preprocess_fn=model.preprocess)
    return _cpu_seconds(lambda: fit(_context(stage, folder), model, loss, _rows(pairs), collator))


def plain_seconds(sides: Sides, pairs: Dataset, folder: Path) -> float:
    """Do the same work with a plain script on sentence-transformers; return the CPU time."""
    model = towers.load(sides.query)
    arguments = SentenceTransformerTrainingArguments(
        str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-4,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    loss = MultipleNegativesRankingLoss(model, scale=20.0)
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=pairs, loss=loss)
    trainer.remove_callback(SentenceTransformerModelCardCallback)  # a fixed cost that would flatter us on little data
    return _cpu_seconds(trainer.train)


class _RecomputingCollator(PairCollator):
    def __init__(self, teacher: SentenceTransformer, **options: Any) -> None:
        super().__init__(**options)
        self.teacher = teacher

    def _labels(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        texts = [row["text"] for row in features]
        return {"label": torch.from_numpy(self.teacher.encode_document(texts, batch_size=BATCH))}


def _align(student: SentenceTransformer, texts: Sequence[str], epochs: int, folder: Path, collator: Any) -> None:
    loss = EmbeddingLoss(student, AlignObjective(InfoNce(0.05)), mini_batch_size=BATCH // 4)
    rows = Dataset.from_dict({"text": list(texts), "label": list(range(len(texts)))})
    stage = Align(kind="align", batch_size=BATCH, epochs=epochs, warmup=0.0)
    fit(_context(stage, folder / "stage"), student, loss, _rows(rows), collator)


def _context(stage: Stage, folder: Path) -> TrainingContext:
    run = Run(name="cost", output=str(folder), dim=DIM, query=QUERY, document=DOCUMENT, checkpoint_minutes=60.0)
    return TrainingContext(run=run, stage=stage, folder=folder)


def _rows(columns: Dataset) -> Rows:
    count = len(columns)
    return Rows(columns, np.ones(count), np.zeros(count, np.int32), (np.zeros(count, np.int32), [""]))


def _layer_parameters(model: SentenceTransformer) -> int:
    words = towers.word_embeddings(model)
    return sum(parameter.numel() for parameter in model.parameters() if parameter is not words)


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--epochs", default=3, show_default=True, help="Epochs of Stage I.")
@click.option("--repeats", default=3, show_default=True, help="Pairs of measurements; the median ratio counts.")
@output_option
def main(corpus: Path, epochs: int, repeats: int, output: Path) -> None:
    """Measure Stage I with stored and with recomputed teacher vectors, and our loop against a plain script.

    \b
    Example:
      python -m benchmarks.perf.training_cost examples/sample/corpus.jsonl --output benchmarks/results/training.json
    """
    torch.set_num_threads(1)
    texts = [str(row["text"]) for row, _ in read_rows(corpus)]
    pairs = Dataset.from_dict({"query": [text[:24] for text in texts], "positive": texts})
    rows = []
    with tempfile.TemporaryDirectory() as name:
        sides = build_sides(texts, Path(name))
        for number in range(repeats):
            folder = Path(name) / str(number)
            row = {
                "stored": stored_teacher_seconds(sides, texts, epochs, folder / "stored"),
                "recomputed": recomputed_teacher_seconds(sides, texts, epochs, folder / "recomputed"),
                "ours": our_seconds(sides, pairs, folder / "ours"),
                "plain": plain_seconds(sides, pairs, folder / "plain"),
            }
            click.echo(json.dumps(row), err=True)
            rows.append(row)
    save_measured(
        output,
        {
            "corpus": {"file": corpus.name, "texts": len(texts)},
            "parameters_without_embeddings": {"query": sides.query_parameters, "document": sides.document_parameters},
            "stage_one_epochs": epochs,
            "cpu_seconds": rows,
            "recomputed_over_stored": statistics.median(row["recomputed"] / row["stored"] for row in rows),
            "plain_over_ours": statistics.median(row["plain"] / row["ours"] for row in rows),
        },
    )


if __name__ == "__main__":
    main()
