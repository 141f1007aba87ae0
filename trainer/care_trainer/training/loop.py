"""The training loop of all stages: sentence-transformers' trainer with our checkpoints, metrics and refusals."""

import json
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PrinterCallback, ProgressCallback, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback

from care_qdrant.encoders.onnx import usable_cores
from care_qdrant.errors import InputError, TrainingError, counted
from care_trainer.data.collators import PairCollator
from care_trainer.data.sampling import EpochSampler
from care_trainer.data.table import Rows
from care_trainer.disk import write_json, writing
from care_trainer.distributed import agree, processes
from care_trainer.losses.embedding import Features, is_flat, without_keys
from care_trainer.training.callbacks import KeepBest, Metrics, OwnGradients, Watch, read_losses
from care_trainer.training.checkpoints import FOLDER, TRAINABLE_FILE, Trainable, last_checkpoint, read_spent
from care_trainer.training.context import TrainingContext
from care_trainer.training.recompute import needs_checkpoints

logger = logging.getLogger(__name__)

BAD_BATCH_FILE = "bad-batch.pt"
BATCH_FILE = "batch.json"
CLEAR_REFS = Path("/proc/self/clear_refs")
"""Linux: 5 makes the peak of the resident set what is held now."""
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of attention: cuDNN's makes a plan for each new shape, and each mini-batch has a shape of its own."""
LOGGED_FRACTION = 0.002
"""Fraction of a stage's steps between two lines of metrics.jsonl, so that every stage has a curve of 500 points."""


class Interrupted(TrainingError):
    """The deadline of a run came; its checkpoint is saved."""


def fit(
    context: TrainingContext,
    model: SentenceTransformer,
    loss: nn.Module,
    rows: Rows,
    collator: PairCollator,
    *,
    by_length: bool = False,
    rates: Mapping[str, float] | None = None,
    score: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Train a model until its stage is over, and return what the trainer measured.

    Args:
        context: The stage, its run, and how far it goes.
        model: The encoder, or both encoders.
        loss: The loss over the model; its own parameters train as well.
        rows: The rows, with the source and the weight of each.
        collator: Makes a tokenised batch of rows.
        by_length: Whether batches hold rows of similar length.
        rates: Learning rates by a pattern of parameter names, instead of the stage's.
        score: Scores the model on held-out data, higher is better; called every ``evaluate_steps``.

    Raises:
        Interrupted: The deadline came; a checkpoint is saved.
    """
    set_seed(context.run.seed)
    context.folder.mkdir(parents=True, exist_ok=True)
    trainable = Trainable(loss)
    steps = context.stage.evaluate_steps
    best = None if score is None or steps is None else KeepBest(context, steps, score, trainable)
    trainer = StageTrainer(
        context=context,
        trainable=trainable,
        model=model,
        loss=loss,
        train_dataset=rows.columns,
        args=training_arguments(context, rows, collator, by_length=by_length, rates=rates or {}),
        data_collator=collator,
        callbacks=[
            Metrics(context),
            Watch(context),
            OwnGradients(loss, model),
            *_event_files(context),
            *([] if best is None else [best]),
        ],
    )
    for callback in (
        PrinterCallback,
        ProgressCallback,
    ):  # `TrainingContext.report` draws the bar; stdout is the result's
        trainer.remove_callback(callback)
    if context.stage.gradient_checkpointing and context.stage.cached and (free := free_gpu_bytes()) is not None:
        trainer.args.activation_checkpointing = trainer.needs_checkpoints(free)
    checkpoint = last_checkpoint(context.folder)
    if checkpoint is not None:
        context.timer.earlier = read_spent(checkpoint)
    if checkpoint is not None and processes().is_main_process:
        step = int(checkpoint.name.rsplit("-", 1)[-1])
        logger.info(
            "stage %s: resumed after step %d%s", context.folder.name, step, losses_in_words(context.folder, step)
        )
    _keep_batch_size(context, resumed=checkpoint is not None)
    with (
        writing(lambda: _unwritten(context.folder)),
        _matmul_precision("high" if context.run.tf32 else "highest"),
        sdpa_kernel(ATTENTION),
        _one_thread_tokenisers(),
    ):
        output = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    is_over = best is not None and best.conclude()
    if trainer.state.global_step < trainer.state.max_steps and not is_over:
        raise Interrupted(
            f"{context.folder.name}: stopped after step {trainer.state.global_step} of {trainer.state.max_steps}; "
            "run the same command to resume"
        )
    measured = {key: float(value) for key, value in output.metrics.items() if key != "train_loss"}
    return {"steps": float(trainer.state.global_step)} | measured


def losses_in_words(folder: Path, last: int | None = None) -> str:
    """Return the first and the latest logged loss of a stage up to a step, for people; empty where none is logged."""
    losses = [loss for step, loss in read_losses(folder) if last is None or step <= last]
    return f"; loss {losses[0]:.4g} → {losses[-1]:.4g}" if losses else ""


def _keep_batch_size(context: TrainingContext, *, resumed: bool) -> None:
    """Refuse to go on with batches of another size, as another number of processes would make them."""
    count = processes().num_processes
    rows = context.stage.rows_of_process(count) * count * context.stage.accumulate
    file = context.folder / BATCH_FILE
    if resumed and file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before["rows"] != rows:
            raise InputError(
                f"{context.folder}: was trained with {counted(before['rows'], 'row')} a step on "
                f"{counted(before['processes'], 'process')}; {count} would make it {rows}. Resume with "
                f"{before['processes']}, or begin again with global_batch_size in place of batch_size"
            )
    processes().wait_for_everyone()  # all have read the file before it is written again
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


@contextmanager
def _one_thread_tokenisers() -> Iterator[None]:
    """Keep tokenisers to one thread: data workers are forks, and would wait for threads that a fork does not have.

    The library does so by itself, unless the environment says TOKENIZERS_PARALLELISM=true.
    """
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _unwritten(folder: Path) -> str:
    last = last_checkpoint(folder)
    return f"{folder}: a checkpoint could not be written; the last complete one is {last.name if last else 'none'}"


def _event_files(context: TrainingContext) -> list[TensorBoardCallback]:
    """Return transformers' TensorBoard tracker with a folder that outlives the checkpoints."""
    if "tensorboard" not in context.run.report_to or not processes().is_main_process:
        return []
    from torch.utils.tensorboard import SummaryWriter

    return [TensorBoardCallback(SummaryWriter(str(context.folder / "tensorboard")))]  # type: ignore[no-untyped-call]


def training_arguments(
    context: TrainingContext, rows: Rows, collator: PairCollator, *, by_length: bool = False, rates: Mapping[str, float]
) -> SentenceTransformerTrainingArguments:
    """Return the arguments of sentence-transformers' trainer: here alone, settings of a run get the trainer's names."""
    run, stage, count = context.run, context.stage, processes().num_processes
    return SentenceTransformerTrainingArguments(
        output_dir=str(context.folder / FOLDER),
        seed=run.seed,
        data_seed=run.seed,
        num_train_epochs=stage.epochs,
        max_steps=stage.max_steps or -1,
        per_device_train_batch_size=stage.rows_of_process(count),
        gradient_accumulation_steps=stage.accumulate,
        learning_rate=stage.learning_rate,
        learning_rate_mapping=dict(rates),
        warmup_steps=stage.warmup,
        lr_scheduler_type=stage.schedule,
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.max_grad_norm,
        bf16=stage.bf16,
        activation_checkpointing=stage.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if stage.gradient_checkpointing else None,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="gloo" if count > 1 and not torch.cuda.is_available() else None,
        # Plain losses need False; with caching each replayed mini-batch touches one side only.
        ddp_find_unused_parameters=stage.cached,
        batch_sampler=partial(
            EpochSampler,
            weights=rows.weights,
            lengths=rows.characters if by_length else None,
            sources=rows.sources if stage.batch_by_source else None,
            processes=count,
            on_epoch=collator.set_epoch,
        ),
        router_mapping=collator.router_mapping,
        save_strategy="no",  # `Watch` asks for checkpoints, by the clock
        save_total_limit=2,
        logging_steps=LOGGED_FRACTION,
        # The filter would log the last finite mean for a loss that is none.
        logging_nan_inf_filter=False,
        # TensorBoard's files would lie among the checkpoints, which are dropped: `_event_files` has a folder for them.
        report_to=[tracker for tracker in run.report_to if tracker != "tensorboard"] or "none",
        run_name=f"{context.folder.parent.name}/{context.folder.name}",
        disable_tqdm=True,
        dataloader_num_workers=min(run.dataloader_workers, usable_cores()),
        dataloader_pin_memory=torch.cuda.is_available(),
    )


class StageTrainer(SentenceTransformerTrainer):
    """Sentence-transformers' trainer with our checkpoints, and a stop at the first loss that is not finite."""

    def __init__(self, *, context: TrainingContext, trainable: Trainable, **options: Any) -> None:
        self.context, self.trainable = context, trainable
        super().__init__(**options)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any, **options: Any) -> Tensor:
        """Take a step, and stop at a loss that is not finite."""
        # A copy: the trainer takes entries out of its own, and a bad batch is to be saved whole.
        loss: Tensor = super().training_step(model, dict(inputs), *rest, **options)
        stage, step = self.context.folder.name, self.state.global_step + 1
        if not torch.isfinite(loss):
            path = self.context.folder / BAD_BATCH_FILE
            torch.save(dict(inputs), path)
            raise TrainingError(
                f"{stage}: the loss is {loss.item()} in step {step}; its batch is "
                f"saved in {path}. Lower the learning rate, or train in bf16 rather than fp16."
            )
        tokens = tokens_of(inputs) * processes().num_processes  # the other processes have about as many
        self.context.report(stage, step, self.state.max_steps, loss.item(), tokens)
        return loss

    def needs_checkpoints(self, free_bytes: int) -> bool:
        """Return whether the free memory of the main process's GPU leaves no way but to recompute activations."""
        model: Any = self.model.train()
        rows_of: Any = self.train_dataset

        def columns(rows: int) -> list[Features]:
            batch = self.data_collator([rows_of[row % len(rows_of)] for row in range(rows)])
            features, _ = self.collect_features(self._prepare_inputs(batch))
            return [without_keys(column) for column in features if not is_flat(column)]

        longest = self.context.stage.max_tokens or model.max_seq_length
        return agree([needs_checkpoints(model, self.context.stage, columns, longest, free_bytes)])[0]

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Leave out sentence-transformers' model card: the CARE folder has its own."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:  # noqa: ARG002
        assert output_dir is not None, "the trainer always names its checkpoint"
        self.trainable.save(Path(output_dir) / TRAINABLE_FILE)

    def _load_from_checkpoint(self, checkpoint_path: str, *_: Any) -> None:
        self.trainable.load(Path(checkpoint_path) / TRAINABLE_FILE)


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
