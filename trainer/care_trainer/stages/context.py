"""What every stage is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentence_transformers import SentenceTransformer

from care_trainer import rows
from care_trainer.config import Data, Run, Side, Stage
from care_trainer.distributed import main_process_first
from care_trainer.fitting import Job
from care_trainer.rows import Rows

Report = Callable[[str, int, int, float], None]
"""Called with what is being done, steps done, steps in all, and the last loss."""


def silent(_what: str, _step: int, _steps: int, _loss: float) -> None:
    """Report nothing."""


def rows_folder(run: Run) -> Path:
    """Give the folder of the Arrow tables, which all stages of a run share."""
    return Path(run.output) / rows.ROWS_FOLDER


@dataclass(frozen=True)
class Context:
    """A stage's surroundings."""

    run: Run
    stage: Stage
    folder: Path
    """Of this stage."""
    query: Path
    """Newest query encoder."""
    document: Path
    """Newest document encoder."""
    resume: bool
    report: Report
    deadline: float | None = None

    @property
    def data(self) -> Data:
        """The stage's data set."""
        return self.run.data[self.stage.data]

    @property
    def data_root(self) -> Path:
        """Where the files of all data sets are."""
        return Path(self.run.data_root)

    def pair_rows(self, hard_negatives: int = 0) -> Rows:
        """Give the pairs of the stage's data set, with columns of negatives."""
        with main_process_first():
            return rows.pair_rows(self.data, self.data_root, rows_folder(self.run), hard_negatives)

    def text_rows(self, sides: Sequence[Side] = ("query", "document")) -> Rows:
        """Give the single texts of the stage's data set."""
        with main_process_first():
            return rows.text_rows(self.data, self.data_root, rows_folder(self.run), sides)

    def job(self, **options: object) -> Job:
        """Give the training loop's settings; options are further fields of `Job`."""
        return Job(
            stage=self.stage,
            folder=self.folder,
            seed=self.run.seed,
            checkpoint_minutes=self.run.checkpoint_minutes,
            resume=self.resume,
            report_to=self.run.report_to,
            report=lambda step, steps, loss: self.report(self.folder.name, step, steps, loss),
            deadline=self.deadline,
            **options,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Trained:
    """What a stage gives back, before anything is saved."""

    query: SentenceTransformer | None
    document: SentenceTransformer | None
    """None where the stage left a side as it was."""
    trainable: dict[str, int]
    """Parameters that trained, per side."""
    metrics: dict[str, float]
    temperature: float | None = None
    evaluate: SentenceTransformer | None = None
    """What the stage's score is taken of; None where a score would mean nothing."""
