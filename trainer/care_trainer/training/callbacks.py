"""Callbacks of the training loop: checkpoints by the clock, the deadline, and metrics.jsonl."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback

from care_qdrant.corpus.json_lines import parsed
from care_trainer.data.read import write_rows
from care_trainer.distributed import agree, average_gradients, processes, share_parameters
from care_trainer.training import checkpoints
from care_trainer.training.checkpoints import Trainable
from care_trainer.training.context import TrainingContext

METRICS_FILE = "metrics.jsonl"
"""Name of the file with the losses of a stage."""
EVALUATIONS_FILE = "evaluations.jsonl"
"""Name of the file with the scores of a stage while it trained."""


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines that a stage has logged; none where it has no such file yet.

    A last line without its end is left out: the process was killed, or the disk full, while it was written.
    """
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [row for row, _ in parsed(path.name, enumerate(whole.splitlines(), start=1))]


def read_losses(folder: Path) -> list[tuple[int, float]]:
    """Return the logged steps of a stage, each with the mean loss of the steps since the one before."""
    return [(row["step"], row["loss"]) for row in read_log(folder / METRICS_FILE) if "loss" in row]


class Watch(TrainerCallback):
    """Decides when to save and when to stop, and marks a checkpoint as complete once all of it is on disk."""

    def __init__(self, context: TrainingContext) -> None:
        self.deadline, self.seconds = context.deadline, 60 * context.run.checkpoint_minutes
        self.last, self.timer = time.monotonic(), context.timer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Request a checkpoint when one is due, and the end of training at the deadline."""
        now = time.monotonic()
        over, due = agree([self.deadline is not None and now >= self.deadline, now - self.last >= self.seconds])
        # None after the last step: the stage then saves its encoders.
        if over or (due and state.global_step < state.max_steps):
            control.should_save, self.last = True, now
        if over:
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Mark the checkpoint as complete."""
        processes().wait_for_everyone()  # each process has written its random state
        if state.is_world_process_zero:
            checkpoints.mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.timer.spent())
        return control


class OwnGradients(TrainerCallback):
    """Treats the loss's own parameters (τ, RetroMAE's decoder), which the trainer does not know, as the model's."""

    def __init__(self, loss: nn.Module, model: nn.Module) -> None:
        of_model = {id(parameter) for parameter in model.parameters()}
        self.own = [parameter for parameter in loss.parameters() if id(parameter) not in of_model]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Start on all processes from the main one's values."""
        share_parameters(self.own)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Average these gradients and clip them by a norm of their own, as the trainer has done with the model's."""
        average_gradients(self.own)
        if args.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(self.own, args.max_grad_norm)


class KeepBest(TrainerCallback):
    """Scores the model every few steps, keeps the best weights, and ends a stage that no longer improves.

    The scores are in evaluations.jsonl; those after the checkpoint from which a stage is resumed are taken again.
    """

    def __init__(self, context: TrainingContext, steps: int, score: Callable[[], float], trainable: Trainable) -> None:
        self.folder, self.steps, self.patience = context.folder, steps, context.stage.patience
        self.score, self.trainable = score, trainable
        self.scores: list[tuple[int, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Read the scores up to the step at which the stage is resumed."""
        lines = read_log(self.folder / EVALUATIONS_FILE) if state.global_step else []
        self.scores = [(line["step"], line["score"]) for line in lines if line["step"] <= state.global_step]

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> Any:  # noqa: ARG002
        """Score the model when a score is due."""
        if state.global_step % self.steps:
            return control
        if state.is_world_process_zero:
            model.eval()
            self.scores.append((state.global_step, self.score()))
            model.train()
            rows = [{"step": step, "score": score} for step, score in self.scores]
            write_rows(self.folder / EVALUATIONS_FILE, rows)
            if self._best() == state.global_step:
                self.trainable.save(self._file(state.global_step))
        if agree([self.is_over()])[0]:
            control.should_training_stop = True
        return control

    def is_over(self) -> bool:
        """Return whether the last scores were no better than an earlier one, as many as ``patience``."""
        if self.patience is None or not self.scores:
            return False
        return sum(step > self._best() for step, _ in self.scores) >= self.patience

    def conclude(self) -> bool:
        """Load the best weights on all processes, and return whether the stage ended since it no longer improved."""
        is_scored, is_over = agree([bool(self.scores), self.is_over()])
        if is_scored:
            if processes().is_main_process:
                self.trainable.load(self._file(self._best()))
            share_parameters(self.trainable.parameters())
        return is_over

    def _best(self) -> int:
        return max(self.scores, key=lambda scored: (scored[1], -scored[0]))[0]

    def _file(self, step: int) -> Path:
        return self.folder / checkpoints.FOLDER / f"best-{step}.safetensors"


class Metrics(TrainerCallback):
    """Writes what the trainer logs to metrics.jsonl."""

    def __init__(self, context: TrainingContext) -> None:
        self.path = context.folder / METRICS_FILE

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Drop what an interrupted run logged after its last checkpoint."""
        if state.is_world_process_zero:
            write_rows(self.path, [line for line in read_log(self.path) if line["step"] <= state.global_step])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Append one line to the file."""
        if state.is_world_process_zero and logs:
            # The trainer divides the losses of this sitting by the steps of all sittings.
            logs = {key: value for key, value in logs.items() if key != "train_loss"}
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": state.global_step, **logs}) + "\n")
