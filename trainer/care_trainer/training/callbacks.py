"""Callbacks of the training loop: checkpoints by the clock, the deadline, and metrics.jsonl."""

import json
import time
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback

from care_trainer.distributed import agree, average_gradients

COMPLETE_FILE = "complete"
"""Name of the file that marks a checkpoint as written to its end."""


class Watch(TrainerCallback):
    """Decides when to save and when to stop, and marks a checkpoint as complete once all of it is on disk."""

    def __init__(self, checkpoint_minutes: float, deadline: float | None) -> None:
        self.checkpoint_minutes, self.deadline = checkpoint_minutes, deadline
        self.last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Request a checkpoint when one is due, and the end of training at the deadline."""
        now = time.monotonic()
        over, due = agree(
            [self.deadline is not None and now >= self.deadline, now - self.last >= 60 * self.checkpoint_minutes]
        )
        if over or (due and state.global_step < state.max_steps):
            control.should_save, self.last = True, now
        if over:
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Mark the checkpoint as complete."""
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE_FILE).touch()
        return control


class AverageOwnGradients(TrainerCallback):
    """Keeps the loss's own parameters (τ, RetroMAE's decoder) equal on all processes."""

    def __init__(self, loss: nn.Module, model: nn.Module) -> None:
        of_model = {id(parameter) for parameter in model.parameters()}
        self.own = [parameter for parameter in loss.parameters() if id(parameter) not in of_model]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Average their gradients; those of the model are averaged already."""
        average_gradients(self.own)


class Metrics(TrainerCallback):
    """Writes what the trainer logs to metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Drop what an interrupted run logged after its last checkpoint."""
        if state.is_world_process_zero:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
            kept = [line for line in lines if json.loads(line)["step"] <= state.global_step]
            self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Append one line to the file."""
        if state.is_world_process_zero and logs:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": state.global_step, **logs}) + "\n")
