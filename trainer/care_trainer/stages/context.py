"""What every stage receives and returns, and the training of a student on stored vectors, which three stages share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import nn

from care_trainer.config import Data, Run, Side, Stage
from care_trainer.data import table
from care_trainer.data.collators import TeacherCollator
from care_trainer.data.table import Rows
from care_trainer.distributed import main_process_first
from care_trainer.losses.embedding import embedding_loss
from care_trainer.models import towers
from care_trainer.models.teacher import teacher_vectors
from care_trainer.models.vector_cache import Half
from care_trainer.training.loop import Job, fit

Report = Callable[[str, int, int, float], None]
"""Called with what is being done, steps done, steps in all, and the last loss."""


def silent(_what: str, _step: int, _steps: int, _loss: float) -> None:
    """Report nothing."""


def rows_folder(run: Run) -> Path:
    """Return the folder of the Arrow tables, which all stages of a run share."""
    return Path(run.output) / table.ROWS_FOLDER


@dataclass(frozen=True)
class Context:
    """What a stage works with."""

    run: Run
    stage: Stage
    folder: Path
    """Folder of this stage."""
    query: Path
    """Folder of the newest query encoder."""
    document: Path
    """Folder of the newest document encoder."""
    resume: bool
    report: Report
    deadline: float | None = None
    """Moment (`time.monotonic`) at which to save and stop."""

    @property
    def data(self) -> Data:
        """The stage's data set."""
        return self.run.data[self.stage.data]

    @property
    def data_root(self) -> Path:
        """The folder of all data files."""
        return Path(self.run.data_root)

    def pair_rows(self, hard_negatives: int = 0) -> Rows:
        """Return the pairs of the stage's data set, with columns of negatives."""
        with main_process_first():
            return table.pair_rows(self.data, self.data_root, rows_folder(self.run), hard_negatives)

    def text_rows(self, sides: Sequence[Side] = ("query", "document")) -> Rows:
        """Return the single texts of the stage's data set."""
        with main_process_first():
            return table.text_rows(self.data, self.data_root, rows_folder(self.run), sides)

    def load_trainable(self, side: Side) -> tuple[SentenceTransformer, int]:
        """Load the newest encoder of a side, and make trainable what the recipe trains of it.

        Returns:
            The encoder, and the number of its trainable parameters.
        """
        tower, folder = (self.run.query, self.query) if side == "query" else (self.run.document, self.document)
        encoder = towers.load(folder)
        return encoder, towers.make_trainable(encoder, side=side, lora=tower.lora is not None)

    def stored_vectors(self, texts: Sequence[str], column: str, *, prompt: str | None = None) -> Half:
        """Return the newest document encoder's vectors of texts, computed once and kept for a resume.

        Args:
            texts: Texts in the order of the rows.
            column: Name of their column, under which the vectors are kept.
            prompt: Prompt of the texts; None means the document prompt.

        Returns:
            (len(texts), dim) float16, memory-mapped.
        """
        done = 0

        def report(rows: int) -> None:
            nonlocal done
            done = min(done + rows, len(texts))
            self.report(f"teacher {column}", done, len(texts), float("nan"))

        return teacher_vectors(
            lambda: towers.load(self.document),
            self.document,
            texts,
            self.folder / "teacher" / column,
            dim=self.run.dim,
            prompt=prompt,
            cache=Path(self.run.teacher_cache) if self.run.teacher_cache else None,
            report=report,
        )

    def job(self, **options: Any) -> Job:
        """Return the settings of the training loop; options are further fields of `Job`."""
        return Job(
            stage=self.stage,
            folder=self.folder,
            seed=self.run.seed,
            checkpoint_minutes=self.run.checkpoint_minutes,
            resume=self.resume,
            report_to=self.run.report_to,
            report=lambda step, steps, loss: self.report(self.folder.name, step, steps, loss),
            deadline=self.deadline,
            **options,
        )


@dataclass(frozen=True)
class Trained:
    """What a stage returns, before anything is saved."""

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
    context: Context, objective: nn.Module, rows: Rows, columns: Dataset, vectors: Sequence[Half]
) -> tuple[SentenceTransformer, dict[str, int], dict[str, float]]:
    """Train the query encoder on stored vectors of the document encoder.

    Args:
        context: Context of the stage.
        objective: Reads the vectors as labels.
        rows: Rows of the stage, whose weights are used.
        columns: Columns that the query encoder reads, with ``label``.
        vectors: Vectors of the rows, one array for each column of labels.

    Returns:
        The query encoder, its trainable parameters by side, and the metrics.
    """
    query, trainable = context.load_trainable("query")
    collator = TeacherCollator(
        *vectors,
        preprocess_fn=query.preprocess,
        prompts=dict.fromkeys({"text", "query"} & set(columns.column_names), context.run.query.prompt),
        max_length=context.stage.max_tokens,
    )
    loss = embedding_loss(query, objective, context.stage)
    metrics = fit(query, loss, columns, context.job(weights=rows.weights, collator=collator))
    return query, {"query": trainable}, metrics
