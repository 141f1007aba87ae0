"""The training loop of all stages: sentence-transformers' trainer with our checkpoints, metrics and refusals.

A checkpoint holds the trainable parameters only, of the model and of the loss: the rest is in the folder that the stage
started from. So it is small with adapters, it loads without rebuilding the model (a reloaded Router with adapters does
not load at all), and the loss's own parameters (τ, RetroMAE's decoder) survive a resume.
"""

import json
import logging
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import Tensor, nn
from transformers import PrinterCallback, ProgressCallback, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback

from care_qdrant.encoders.onnx import usable_cores
from care_qdrant.errors import InputError, TrainingError
from care_trainer.config import Stage
from care_trainer.data.collators import PairCollator
from care_trainer.data.sampling import EpochSampler, Sources
from care_trainer.disk import write_json, writing
from care_trainer.distributed import agree, processes
from care_trainer.losses.embedding import Features, is_flat, without_keys
from care_trainer.training.callbacks import COMPLETE_FILE, KeepBest, Metrics, OwnGradients, Watch
from care_trainer.training.recompute import needs_checkpoints

logger = logging.getLogger(__name__)

TRAINABLE_FILE = "trainable.safetensors"
METRICS_FILE = "metrics.jsonl"
BAD_BATCH_FILE = "bad-batch.pt"
BATCH_FILE = "batch.json"
CLEAR_REFS = Path("/proc/self/clear_refs")
"""Linux: 5 makes the peak of the resident set what is held now."""
LOGGED_FRACTION = 0.002
"""Fraction of a stage's steps between two lines of metrics.jsonl, so that every stage has a curve of 500 points."""


@dataclass(frozen=True)
class Job:
    """What the training loop needs beside model, loss and data."""

    stage: Stage
    folder: Path
    """Folder of the stage; checkpoints and metrics go below."""
    seed: int
    checkpoint_minutes: float
    resume: bool = False
    report_to: Sequence[str] = ()
    weights: Sequence[float] | npt.NDArray[np.float64] | None = None
    """How often an epoch draws each row, (rows,)."""
    lengths: Sequence[int] | npt.NDArray[np.int32] | None = None
    """Length of each row, (rows,); when given, batches hold rows of similar length."""
    routes: Mapping[str, str] = field(default_factory=dict)
    """Side that encodes each column, of a joined model."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates by parameter name pattern."""
    sources: Sources | None = None
    """Number of each row's source, and the names; used where a batch has one source."""
    collator: Any = None
    """Turns rows into tokenised batches."""
    report: Callable[[int, int, float, int], None] = lambda *_: None
    """Called after each step with step, steps, the last loss, and the tokens of all processes in it."""
    score: Callable[[], float] | None = None
    """Scores the model on held-out data, higher is better; called every ``evaluate_steps``."""
    workers: int = 0
    """Processes that read and tokenise batches ahead."""
    tf32: bool = False
    """Multiply float32 matrices in TF32."""
    deadline: float | None = None
    """Moment (`time.monotonic`) at which to save and stop."""


class Interrupted(TrainingError):
    """The deadline of a run came; its checkpoint is saved."""


def fit(model: SentenceTransformer, loss: nn.Module, rows: Dataset, job: Job) -> dict[str, float]:
    """Train a model until the stage is over."""
    set_seed(job.seed)
    job.folder.mkdir(parents=True, exist_ok=True)
    trainer = StageTrainer(
        job=job,
        model=model,
        loss=loss,
        train_dataset=rows,
        args=_arguments(job),
        data_collator=job.collator,
        callbacks=[
            Metrics(job.folder / METRICS_FILE),
            Watch(job.checkpoint_minutes, job.deadline),
            OwnGradients(loss, model),
            *_event_files(job),
        ],
    )
    best = None
    if job.score is not None and job.stage.evaluate_steps is not None:
        best = KeepBest(job.folder, job.stage.evaluate_steps, job.stage.patience, job.score, trainer)
        trainer.add_callback(best)
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    if job.stage.gradient_checkpointing and job.stage.cached and (free := free_gpu_bytes()) is not None:
        trainer.args.activation_checkpointing = trainer.needs_checkpoints(free)
    checkpoint = last_checkpoint(job.folder) if job.resume else None
    _keep_batch_size(job, resumed=checkpoint is not None)
    with writing(lambda: _unwritten(job.folder)), _matmul_precision("high" if job.tf32 else "highest"):
        output = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    is_over = best is not None and best.conclude()
    if trainer.state.global_step < trainer.state.max_steps and not is_over:
        raise Interrupted(
            f"{job.folder.name}: stopped after step {trainer.state.global_step} of {trainer.state.max_steps}; "
            "go on with --resume"
        )
    return {"steps": float(trainer.state.global_step)} | {key: float(value) for key, value in output.metrics.items()}


def _keep_batch_size(job: Job, *, resumed: bool) -> None:
    """Refuse to go on with batches of another size, as another number of processes would make them."""
    count = processes().num_processes
    rows = job.stage.rows_of_process(count) * count * job.stage.accumulate
    file = job.folder / BATCH_FILE
    if resumed and file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before["rows"] != rows:
            raise InputError(
                f"{job.folder}: was trained with {before['rows']} rows a step on {before['processes']} processes; "
                f"{count} would make it {rows}. Resume with {before['processes']}, or begin again with "
                "global_batch_size in place of batch_size"
            )
    processes().wait_for_everyone()
    if processes().is_main_process:
        write_json(file, {"rows": rows, "processes": count})


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    """Multiply float32 matrices in a precision until the block ends."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _unwritten(folder: Path) -> str:
    last = last_checkpoint(folder)
    return f"{folder}: a checkpoint could not be written; the last one that is whole is {last.name if last else 'none'}"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of a stage that was written to its end, or None."""
    found = sorted(
        (path for path in (folder / "checkpoints").glob("checkpoint-*") if (path / COMPLETE_FILE).exists()),
        key=lambda path: int(path.name.rsplit("-", 1)[-1]),
    )
    return found[-1] if found else None


def _event_files(job: Job) -> list[TensorBoardCallback]:
    """Return transformers' TensorBoard tracker with a folder that outlives the checkpoints."""
    if "tensorboard" not in job.report_to or not processes().is_main_process:
        return []
    from torch.utils.tensorboard import SummaryWriter

    return [TensorBoardCallback(SummaryWriter(str(job.folder / "tensorboard")))]  # type: ignore[no-untyped-call]


def _arguments(job: Job) -> SentenceTransformerTrainingArguments:
    stage = job.stage
    return SentenceTransformerTrainingArguments(
        output_dir=str(job.folder / "checkpoints"),
        seed=job.seed,
        data_seed=job.seed,
        num_train_epochs=stage.epochs,
        max_steps=stage.max_steps or -1,
        per_device_train_batch_size=stage.rows_of_process(processes().num_processes),
        gradient_accumulation_steps=stage.accumulate,
        learning_rate=stage.learning_rate,
        learning_rate_mapping=dict(job.rates),
        warmup_steps=stage.warmup,
        lr_scheduler_type=stage.schedule,
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.max_grad_norm,
        bf16=stage.bf16,
        activation_checkpointing=stage.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if stage.gradient_checkpointing else None,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="gloo" if processes().num_processes > 1 and not torch.cuda.is_available() else None,
        # Plain losses need False; with caching each replayed mini-batch touches one side only.
        ddp_find_unused_parameters=stage.cached,
        batch_sampler=partial(
            EpochSampler,
            weights=job.weights,
            lengths=job.lengths,
            sources=job.sources if stage.batch_by_source else None,
            processes=processes().num_processes,
            on_epoch=job.collator.set_epoch if isinstance(job.collator, PairCollator) else None,
        ),
        router_mapping=dict(job.routes),
        save_strategy="no",
        save_total_limit=2,
        logging_steps=LOGGED_FRACTION,
        logging_nan_inf_filter=False,
        report_to=[tracker for tracker in job.report_to if tracker != "tensorboard"] or "none",
        run_name=f"{job.folder.parent.name}/{job.folder.name}",
        disable_tqdm=True,
        dataloader_num_workers=min(job.workers, usable_cores()),
        dataloader_pin_memory=torch.cuda.is_available(),
    )


class StageTrainer(SentenceTransformerTrainer):
    """Sentence-transformers' trainer with our checkpoints, and a stop at the first loss that is not finite."""

    def __init__(self, *, job: Job, **options: Any) -> None:
        self.job = job
        super().__init__(**options)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any, **options: Any) -> Tensor:
        """Take a step, and stop at a loss that is not finite."""
        loss: Tensor = super().training_step(model, dict(inputs), *rest, **options)
        if not torch.isfinite(loss):
            path = self.job.folder / BAD_BATCH_FILE
            torch.save(dict(inputs), path)
            raise TrainingError(
                f"{self.job.folder.name}: the loss is {loss.item()} in step {self.state.global_step + 1}; its batch is "
                f"saved in {path}. Lower the learning rate, or train in bf16 rather than fp16."
            )
        tokens = tokens_of(inputs) * processes().num_processes  # those of the others are about as many
        self.job.report(self.state.global_step + 1, self.state.max_steps, loss.item(), tokens)
        return loss

    def needs_checkpoints(self, free_bytes: int) -> bool:
        """Return whether the free memory of the main process's GPU leaves no way but to recompute activations."""
        model: Any = self.model.train()
        rows_of: Any = self.train_dataset

        def columns(rows: int) -> list[Features]:
            batch = self.data_collator([rows_of[row % len(rows_of)] for row in range(rows)])
            features, _ = self.collect_features(self._prepare_inputs(batch))
            return [without_keys(column) for column in features if not is_flat(column)]

        longest = self.job.stage.max_tokens or model.max_seq_length
        return agree([needs_checkpoints(model, self.job.stage, columns, longest, free_bytes)])[0]

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Leave out sentence-transformers' model card: the CARE folder has its own."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:  # noqa: ARG002
        assert output_dir is not None, "the trainer always names its checkpoint"
        self.save_trainable(Path(output_dir) / TRAINABLE_FILE)

    def save_trainable(self, file: Path) -> None:
        """Save the trainable parameters of model and loss."""
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: parameter.detach().cpu().contiguous() for name, parameter in self._named()}, file)

    def _load_from_checkpoint(self, checkpoint_path: str, *_: Any) -> None:
        self.load_trainable(Path(checkpoint_path) / TRAINABLE_FILE)

    def load_trainable(self, file: Path) -> None:
        """Load the trainable parameters of model and loss."""
        saved = load_file(file)
        trainable = dict(self._named())
        if saved.keys() != trainable.keys():
            differing = sorted(saved.keys() ^ trainable.keys())
            raise TrainingError(f"{file.parent}: does not fit this stage ({differing[0]} is in only one of them)")
        with torch.no_grad():
            for name, parameter in trainable.items():
                parameter.copy_(saved[name])

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable parameters of model and loss."""
        return [parameter for _, parameter in self._named()]

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        """Return the trainable parameters of model and loss, each once, under names that wrapping does not change."""
        assert isinstance(self.loss, nn.Module)
        parameters = self.loss.named_parameters()
        return [(name.replace("model.module.", "model."), value) for name, value in parameters if value.requires_grad]


def tokens_of(batch: Mapping[str, Any]) -> int:
    """Return the tokens of all texts of a batch, without padding."""
    masks = sum(int(value.sum()) for name, value in batch.items() if name.endswith("attention_mask"))
    # A static encoder's column is flat: all its tokens in one row, and no mask.
    flat = [name.removesuffix("offsets") for name in batch if name.endswith("offsets")]
    return masks + sum(int(batch[f"{name}input_ids"].numel()) for name in flat)


def free_gpu_bytes() -> int | None:
    """Return the memory of the GPU that is free; None without a GPU."""
    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held: that of its GPU, or without one the resident set."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak_memory() -> None:
    """Let `peak_memory_bytes` count from what is held now; without a GPU, on Linux alone."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5", encoding="ascii")


def drop_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a stage that is finished and saved."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
