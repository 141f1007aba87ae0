"""Two paired measurements in processor seconds, which other programs on the machine disturb least."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from care_trainer.config import Align, Contrastive, Scratch, Stage, Tower, Vocabulary
from care_trainer.data.collators import TeacherCollator
from care_trainer.losses.embedding import EmbeddingLoss
from care_trainer.losses.objectives import AlignObjective, InfoNce
from care_trainer.models import scratch, towers
from care_trainer.models.teacher import teacher_vectors
from care_trainer.training.loop import Job, fit
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardCallback
from transformers import set_seed

DIM = 128
BATCH = 64
QUERY = Tower(scratch=Scratch(layers=2, hidden=DIM, heads=4, intermediate=4 * DIM), pooling="mean", max_tokens=256)
DOCUMENT = Tower(scratch=Scratch(layers=8, hidden=256, heads=4, intermediate=768), pooling="lasttoken", max_tokens=256)


@dataclass(frozen=True)
class Sides:
    """The two encoders on disk, and their sizes without embeddings."""

    query: Path
    document: Path
    query_parameters: int
    document_parameters: int


def build_sides(texts: Sequence[str], folder: Path) -> Sides:
    """Write a small query encoder and a document encoder of at least ten times its layers' parameters."""
    set_seed(0)
    tokenizer = scratch.train_tokenizer(Vocabulary(data="", size=4000), texts)
    scratch.write_query_base(QUERY, tokenizer, folder / "query-base")
    scratch.write_document_base(DOCUMENT, tokenizer, folder / "document-base")
    query = towers.build_query(str(folder / "query-base"), QUERY, DIM)
    document = towers.build_document(str(folder / "document-base"), DOCUMENT, DIM)
    query.save_pretrained(str(folder / "query"), create_model_card=False)
    document.save_pretrained(str(folder / "document"), create_model_card=False)
    return Sides(folder / "query", folder / "document", _layer_parameters(query), _layer_parameters(document))


def stored_teacher_seconds(sides: Sides, texts: Sequence[str], epochs: int, folder: Path) -> float:
    """Train Stage I on stored vectors, the time to make them included."""

    def train() -> None:
        vectors = teacher_vectors(
            lambda: towers.load(sides.document), sides.document, texts, folder / "teacher", dim=DIM
        )
        student = towers.load(sides.query)
        _align(student, texts, epochs, folder, TeacherCollator(vectors, preprocess_fn=student.preprocess))

    return _cpu_seconds(train)


def recomputed_teacher_seconds(sides: Sides, texts: Sequence[str], epochs: int, folder: Path) -> float:
    """Train Stage I the same way, the teacher encoding each batch when it comes."""

    def train() -> None:
        student = towers.load(sides.query)
        collator = _RecomputingCollator(towers.load(sides.document), preprocess_fn=student.preprocess)
        _align(student, texts, epochs, folder, collator)

    return _cpu_seconds(train)


def our_seconds(sides: Sides, pairs: Dataset, folder: Path) -> float:
    """Train the query encoder for one epoch of pairs with our loop."""
    model = towers.load(sides.query)
    loss = EmbeddingLoss(model, InfoNce(0.05), mini_batch_size=BATCH // 4)
    stage = Contrastive(kind="supervised", batch_size=BATCH, warmup=0.0)
    return _cpu_seconds(lambda: fit(model, loss, pairs, _job(stage, folder, None)))


def plain_seconds(sides: Sides, pairs: Dataset, folder: Path) -> float:
    """Do the same work with a plain script on sentence-transformers."""
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


class _RecomputingCollator(SentenceTransformerDataCollator):
    def __init__(self, teacher: SentenceTransformer, **options: Any) -> None:
        super().__init__(**options)
        self.teacher = teacher

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().__call__(features)
        texts = [row["text"] for row in features]
        batch["label"] = torch.from_numpy(self.teacher.encode_document(texts, batch_size=BATCH))
        return batch


def _align(student: SentenceTransformer, texts: Sequence[str], epochs: int, folder: Path, collator: Any) -> None:
    loss = EmbeddingLoss(student, AlignObjective(InfoNce(0.05)), mini_batch_size=BATCH // 4)
    rows = Dataset.from_dict({"text": list(texts), "label": list(range(len(texts)))})
    stage = Align(kind="align", batch_size=BATCH, epochs=epochs, warmup=0.0)
    fit(student, loss, rows, _job(stage, folder / "stage", collator))


def _job(stage: Stage, folder: Path, collator: Any) -> Job:
    return Job(stage=stage, folder=folder, seed=0, checkpoint_minutes=60, collator=collator)


def _layer_parameters(model: SentenceTransformer) -> int:
    words = towers.word_embeddings(model)
    return sum(parameter.numel() for parameter in model.parameters() if parameter is not words)


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
