"""The context of a training: built once for each stage, read by the stage, the training loop and its callbacks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from care_trainer.config import Run, Stage

Report = Callable[[str, int, int, float, int], None]
"""Function that is told what is being done, steps done, all steps, the last loss, and the tokens of the last step."""


def silent(_what: str, _step: int, _steps: int, _loss: float, _tokens: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Spent:
    """Time that the work of a stage took."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of this process, of all its threads."""


class Timer:
    """The clock of a stage, which continues from the checkpoint of an interrupted run."""

    def __init__(self) -> None:
        self.earlier = Spent()
        """Time up to the checkpoint from which the stage was resumed."""
        self._began, self._cpu_began = time.monotonic(), time.process_time()

    def spent(self) -> Spent:
        """Return the time of the stage so far, without the work that an interruption lost."""
        return Spent(
            round(self.earlier.seconds + time.monotonic() - self._began, 1),
            round(self.earlier.cpu_seconds + time.process_time() - self._cpu_began, 1),
        )


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """One stage of a run: its settings, the folder that it writes, and how far it goes."""

    run: Run
    stage: Stage
    folder: Path
    """Folder of the stage; checkpoints and metrics go below."""
    report: Report = silent
    """Function that is told of each step."""
    deadline: float | None = None
    """Moment (`time.monotonic`) at which to save and stop."""
    timer: Timer = field(default_factory=Timer)
    """Clock of the stage, which runs from here on."""
