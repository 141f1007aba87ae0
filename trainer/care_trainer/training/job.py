"""The job of training one stage of a run: built once by the pipeline, read by the stage, the loop and its callbacks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from care_trainer.config import Run, Stage

Report = Callable[[str, int, int, float, int], None]
"""Function that is told what is being done, steps done, all steps, the last loss, and the tokens of the last step."""


def silent(_what: str, _step: int, _steps: int, _loss: float, _tokens: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One stage of a run: its settings, the folder that it writes, and how far it goes."""

    run: Run
    stage: Stage
    folder: Path
    """Folder of the stage; checkpoints and metrics go below."""
    resume: bool = False
    """Whether to go on from the last checkpoint."""
    report: Report = silent
    """Function that is told of each step."""
    deadline: float | None = None
    """Moment (`time.monotonic`) at which to save and stop."""
