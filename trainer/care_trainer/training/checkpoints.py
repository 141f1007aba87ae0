"""Checkpoints of a stage: the parameters that train, and a mark on the checkpoints that are whole.

A checkpoint holds the trainable parameters only, of the model and of the loss: the rest is in the folder that the stage
started from. So it is small with adapters, it loads without rebuilding the model (a reloaded Router with adapters does
not load at all), and the loss's own parameters (τ, RetroMAE's decoder) survive a resume.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from care_qdrant.errors import TrainingError
from care_trainer.disk import write_json
from care_trainer.training.context import Spent

FOLDER = "checkpoints"
TRAINABLE_FILE = "trainable.safetensors"
COMPLETE_FILE = "complete"
"""Name of the file that marks a checkpoint as written to its end, and tells the time that the stage took up to it."""


class Trainable:
    """The parameters of a loss and its model that train: each once, under names that wrapping does not change."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters in the order of their names in the loss."""
        return list(self._named().values())

    def save(self, file: Path) -> None:
        """Write the values of the parameters."""
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: parameter.detach().cpu().contiguous() for name, parameter in self._named().items()}, file)

    def load(self, file: Path) -> None:
        """Read the values of the parameters."""
        saved, trainable = load_file(file), self._named()
        if saved.keys() != trainable.keys():
            differing = sorted(saved.keys() ^ trainable.keys())
            raise TrainingError(
                f"{file.parent}: does not fit this stage ({differing[0]} is in only one of them); remove the folder of "
                "the stage, and train it again"
            )
        with torch.no_grad():
            for name, parameter in trainable.items():
                parameter.copy_(saved[name])

    def _named(self) -> dict[str, nn.Parameter]:
        # Read again each time: the trainer puts a wrapped model into the loss once it trains on several processes.
        parameters = self._loss.named_parameters()
        return {name.replace("model.module.", "model."): value for name, value in parameters if value.requires_grad}


def mark_complete(folder: Path, spent: Spent) -> None:
    """Mark a checkpoint as written to its end."""
    write_json(folder / COMPLETE_FILE, asdict(spent))


def read_spent(folder: Path) -> Spent:
    """Return the time that a stage took up to a complete checkpoint; none where an earlier version did not say."""
    told = (folder / COMPLETE_FILE).read_text(encoding="utf-8")
    return Spent(**json.loads(told)) if told else Spent()


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of a stage that was written to its end, or None."""
    complete = sorted(
        (path for path in (folder / FOLDER).glob("checkpoint-*") if (path / COMPLETE_FILE).exists()),
        key=lambda path: int(path.name.rsplit("-", 1)[-1]),
    )
    return complete[-1] if complete else None


def drop_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a stage that is finished and saved."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
