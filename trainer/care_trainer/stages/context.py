"""The context of a stage with its data and encoders, its result, and the training of a student on stored vectors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from care_qdrant.errors import InputError
from care_trainer import evaluation
from care_trainer.config import Align, Data, Joint, RetroMae, Run, Side, Stage, Tower
from care_trainer.config.run import ROWS
from care_trainer.config.stages import PairStage
from care_trainer.data import table
from care_trainer.data.collators import PairCollator, Prompts, TeacherCollator
from care_trainer.data.read import file_hashes
from care_trainer.data.table import Documents, Rows
from care_trainer.distributed import main_process_first
from care_trainer.learn.snapshot import load_snapshot
from care_trainer.losses.embedding import embedding_loss
from care_trainer.models import towers
from care_trainer.models.teacher import teacher_vectors
from care_trainer.models.vector_cache import Half
from care_trainer.training.context import TrainingContext
from care_trainer.training.loop import fit


def rows_folder(run: Run) -> Path:
    """Return the folder of the Arrow tables, which all stages of a run share, or all runs with the same cache."""
    return Path(run.teacher_cache or run.output) / ROWS


def rows_of(run: Run, stage: Stage) -> Rows:
    """Return the rows of a stage: single texts, or each pair as one text, for language modelling; or pairs."""
    data, root, folder = run.data_set(stage.data), Path(run.data_root), rows_folder(run)
    if isinstance(stage, RetroMae):
        return table.text_rows(data, root, folder, joined=stage.joined)
    if isinstance(stage, Align) and not stage.pairs:
        return table.text_rows(data, root, folder, stage.sides)
    return table.pair_rows(data, root, folder, by_source=stage.batch_by_source)


@dataclass(frozen=True, kw_only=True)
class Context(TrainingContext):
    """The context of a stage with the encoders that it starts from; it reads the stage's data and loads them."""

    query: Path
    """Folder of the newest query encoder."""
    document: Path
    """Folder of the newest document encoder."""

    @property
    def data(self) -> Data:
        """The stage's data set."""
        return self.run.data_set(self.stage.data)

    @property
    def data_root(self) -> Path:
        """The folder of all data files."""
        return Path(self.run.data_root)

    def data_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each data file of the stage by name."""
        return file_hashes(self.data, self.data_root) if self.stage.data else {}

    def rows(self) -> Rows:
        """Return the rows that the stage trains on."""
        with main_process_first():
            return rows_of(self.run, self.stage)

    def load_trainable(self, side: Side) -> tuple[SentenceTransformer, int]:
        """Load the newest encoder of a side, with the number of its parameters that the recipe trains."""
        return towers.load_trainable(*self._saved(side), side)

    def load(self, side: Side) -> SentenceTransformer:
        """Load the newest encoder of a side, with the dtype, attention and quantisation of its settings."""
        return towers.load(*self._saved(side))

    def _saved(self, side: Side) -> tuple[Path, Tower]:
        return (self.query, self.run.query) if side == "query" else (self.document, self.run.document)

    def stored_vectors(self, texts: Sequence[str], column: str, *, prompt: str | None = None) -> Half:
        """Return the newest document encoder's vectors of texts, computed once and kept for a resume."""
        done = 0

        def report(rows: int) -> None:
            nonlocal done
            done = min(done + rows, len(texts))
            self.report(f"teacher {column}", done, len(texts), float("nan"), 0)

        return teacher_vectors(
            self._teacher,
            self.document,
            texts,
            self.folder / "teacher" / column,
            dim=self.run.dim,
            prompt=prompt,
            cache=Path(self.run.teacher_cache) if self.run.teacher_cache else None,
            jobs=self.run.teacher_jobs,
            report=report,
        )

    def _teacher(self) -> SentenceTransformer:
        """Load the newest document encoder as it will encode, with its adapters in its weights."""
        encoder = self.load("document")
        if self.run.document.quantization is None:
            towers.merge(encoder)
            if self.stage.bf16:
                encoder.to(torch.bfloat16)
        return encoder

    def stored_documents(self, rows: Rows) -> tuple[Documents, Half]:
        """Return the distinct documents of pairs and the newest document encoder's vectors of them."""
        where = f"stage {self.folder.name}"
        if table.scored(rows).any():
            raise InputError(f"{where}: pairs with a score need a document encoder that trains; leave their source out")
        documents = Documents(rows)
        return documents, self.stored_vectors(documents, "document")

    def tasks(self) -> Prompts:
        """Return the prompts of the sources that have a task."""
        tasks = {name: (task.query, task.document) for name, task in self.run.tasks.items()}
        return {source: tasks[task] for source, task in self.data.tasks.items()}

    def pair_collator(
        self, model: SentenceTransformer, prompts: Mapping[str, str], routes: Mapping[str, str] | None = None
    ) -> PairCollator:
        """Return the collator of a stage on pairs: prompts by column, and where two sides train, the side of each."""
        assert isinstance(self.stage, PairStage)
        return PairCollator(
            self.stage.crop,
            preprocess_fn=model.preprocess,
            prompts=prompts,
            router_mapping=dict(routes or {}),
            **self._collating(),
        )

    def teacher_collator(
        self, model: SentenceTransformer, *vectors: Half, documents: tuple[Documents, Half] | None
    ) -> TeacherCollator:
        """Return the collator of a student: its texts, and the teacher's vectors of them or of their documents."""
        return TeacherCollator(
            *vectors,
            documents=documents,
            preprocess_fn=model.preprocess,
            prompts=dict.fromkeys(("text", "query"), self.run.query.prompt),
            **self._collating(),
        )

    def _collating(self) -> dict[str, Any]:
        """Return the options that both collators take from the settings."""
        return {
            "max_length": self.stage.max_tokens,
            "tasks": self.tasks(),
            "negatives": self.stage.hard_negatives if isinstance(self.stage, PairStage) else 0,
            "seed": self.run.seed,
        }

    def scoring(self, model: Callable[[], SentenceTransformer]) -> Callable[[], float] | None:
        """Return a function that scores a model on held-out data; None if the stage asks for none.

        ``model`` is called only if there is something to score, since a pair holds a document encoder in memory.
        The score is nDCG@10 on the evaluation set, or the mean reciprocal rank on held-out documents of a collection.
        """
        settings = self.run.evaluation
        if self.stage.evaluate_steps is None:
            return None
        if self.run.document.collection is not None:
            snapshot, student = load_snapshot(self.run.collection_folder), model()
            return lambda: snapshot.score(student).mrr
        if settings is None:
            return None
        evaluator, scored = evaluation.load_evaluator(settings, self.data_root), model()
        return lambda: evaluation.score(evaluator, scored)["ndcg@10"]


@dataclass(frozen=True)
class Trained:
    """The result of a stage, before anything is saved."""

    query: SentenceTransformer | None
    """The trained query encoder; None where the stage left it as it was."""
    document: SentenceTransformer | None
    """The trained document encoder; None where the stage left it as it was."""
    trainable: Mapping[str, int]
    """Parameters that trained, by side."""
    metrics: Mapping[str, float]
    temperature: float | None = None
    evaluate: SentenceTransformer | None = None
    """The model that is scored; None where a score would mean nothing."""


def train_student(
    context: Context,
    objective: nn.Module,
    rows: Rows,
    columns: Sequence[str],
    *vectors: Half,
    documents: tuple[Documents, Half] | None = None,
) -> Trained:
    """Train the query encoder on stored vectors of the document encoder."""
    stage = context.stage
    assert isinstance(stage, Align | Joint)
    query, trainable = context.load_trainable("query")
    is_alone = context.run.document.collection is not None

    def scored() -> SentenceTransformer:
        return query if is_alone else towers.pair(query, context.load("document"))

    loss, collator = (
        embedding_loss(query, objective, stage),
        context.teacher_collator(query, *vectors, documents=documents),
    )
    metrics = fit(context, query, loss, rows.with_texts(columns), collator, score=context.scoring(scored))
    return Trained(query, None, {"query": trainable}, metrics, stage.temperature, scored())
