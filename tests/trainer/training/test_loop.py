import json
import resource
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from care_trainer.config import Contrastive, Lora, Run
from care_trainer.data.collators import PairCollator
from care_trainer.losses.embedding import EmbeddingLoss
from care_trainer.losses.objectives import InfoNce
from care_trainer.models import towers
from care_trainer.training import loop
from care_trainer.training.callbacks import OwnGradients
from care_trainer.training.checkpoints import last_checkpoint, read_spent
from care_trainer.training.context import Spent, Timer, TrainingContext
from care_trainer.training.loop import Interrupted, fit
from transformers import set_seed

from care_qdrant.errors import InputError, TrainingError
from tests.tiny import Killed
from tests.trainer.tiny_run import pairs, table_of

COLUMNS = {key: [row[key] for row in pairs()] for key in ("query", "positive")}
STAGE = Contrastive(
    kind="supervised", data="pairs", batch_size=8, epochs=2, learning_rate=1e-3, warmup=0.1, learn_temperature=True
)


def _train(
    base: Run, folder: Path, *, kill_at: int | None = None, report: Any = None, **options: Any
) -> dict[str, torch.Tensor]:
    """Train with dropout, a learned τ, crops and fractional weights; give the trained parameters."""
    model = towers.load(Path(base.output) / "base/query")
    towers.make_trainable(model, side="query", lora=False)
    loss = EmbeddingLoss(model, InfoNce(0.05, learn=True), mini_batch_size=4)

    def kill(what: str, step: int, steps: int, value: float, tokens: int) -> None:
        if step == kill_at:
            raise Killed

    context = TrainingContext(
        run=replace(base, checkpoint_minutes=0.0), stage=STAGE, folder=folder, report=report or kill, **options
    )
    rows = table_of(COLUMNS, [0.5 if row % 2 else 1.0 for row in range(len(COLUMNS["query"]))])
    fit(context, model, loss, rows, PairCollator(0.3, preprocess_fn=model.preprocess))
    return {name: parameter.detach().clone() for name, parameter in loss.named_parameters()}


@pytest.fixture(scope="module")
def uninterrupted(base: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], Path]:
    folder = tmp_path_factory.mktemp("whole")
    return _train(base, folder), folder


@pytest.mark.parametrize("kill_at", [3, 7])
def test_killed_and_resumed_is_uninterrupted_to_the_last_bit(
    base: Run, uninterrupted: tuple[dict[str, torch.Tensor], Path], tmp_path: Path, kill_at: int
) -> None:
    with pytest.raises(Killed):
        _train(base, tmp_path, kill_at=kill_at)
    resumed = _train(base, tmp_path)
    expected, folder = uninterrupted
    assert all(torch.equal(resumed[name], value) for name, value in expected.items())
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_clock_of_a_stage_counts_every_sitting(base: Run, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        _train(base, tmp_path, deadline=time.monotonic())
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint is not None
    told = read_spent(checkpoint)
    assert told.seconds > 0 and told.cpu_seconds > 0
    (checkpoint / "complete").write_text(json.dumps({"seconds": 1_000.0, "cpu_seconds": 2_000.0}), encoding="utf-8")
    timer = Timer()
    _train(base, tmp_path, timer=timer)
    assert timer.spent().seconds > 1_000 and timer.spent().cpu_seconds > 2_000


def test_a_checkpoint_of_a_version_without_a_clock_is_read(tmp_path: Path) -> None:
    (tmp_path / "complete").touch()
    assert read_spent(tmp_path) == Spent()


def test_a_resume_keeps_the_rows_of_a_step(base: Run, tmp_path: Path) -> None:
    """``batch_size`` counts the rows of one process, so another number of processes would change the whole batch."""
    with pytest.raises(Killed):
        _train(base, tmp_path, kill_at=3)
    assert json.loads((tmp_path / "batch.json").read_text()) == {"rows": 8, "processes": 1}
    (tmp_path / "batch.json").write_text(json.dumps({"rows": 16, "processes": 2}))
    with pytest.raises(InputError, match="16 rows a step on 2 processes; 1 would make it 8"):
        _train(base, tmp_path)


def test_the_loss_s_own_gradients_are_clipped() -> None:
    model = torch.nn.Linear(2, 2)
    loss = torch.nn.ModuleDict({"model": model, "decoder": torch.nn.Linear(2, 2)})
    for parameter in loss.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    OwnGradients(loss, model).on_pre_optimizer_step(SimpleNamespace(max_grad_norm=1.0), None, None)  # type: ignore[arg-type]
    assert torch.nn.utils.get_total_norm([own.grad for own in loss["decoder"].parameters()]) == pytest.approx(1.0)  # type: ignore[misc]
    assert model.weight.grad is not None and model.weight.grad.max() == 100.0, "those of the model are clipped already"


def test_the_deadline_saves_and_stops(base: Run, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="stopped after step 1 of"):
        _train(base, tmp_path, deadline=time.monotonic())
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.name == "checkpoint-1"


def test_a_full_disk_leaves_the_last_good_checkpoint(
    base: Run, uninterrupted: tuple[dict[str, torch.Tensor], Path], tmp_path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(what: str, step: int, steps: int, value: float, tokens: int) -> None:
        if step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))

    try:
        with pytest.raises(TrainingError, match=r"the last complete one is checkpoint-2 \(.*to resume"):
            _train(base, tmp_path, report=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "checkpoints/checkpoint-3").exists(), "half of it"
    resumed = _train(base, tmp_path)
    assert all(torch.equal(resumed[name], value) for name, value in uninterrupted[0].items())


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* deprecated:FutureWarning")  # peft and the trainer
def test_gradient_checkpointing_computes_each_layer_twice_and_changes_nothing(
    base: Run, tmp_path: Path, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(checkpointing: bool, free_bytes: int | None = None) -> tuple[dict[str, torch.Tensor], int]:
        monkeypatch.setattr(loop, "free_gpu_bytes", lambda: free_bytes)
        tower = replace(base.document, lora=Lora(rank=4, alpha=8))
        set_seed(0)
        model = towers.build_document(str(Path(base.output) / "base/document-base"), tower, base.dim)
        towers.make_trainable(model, side="document", lora=True)
        passes = 0

        def count(*_: object) -> None:
            nonlocal passes
            passes += 1

        towers.transformer_of(model).model.layers[0].mlp.register_forward_pre_hook(count)
        stage = replace(STAGE, gradient_checkpointing=checkpointing, max_steps=3, learning_rate=1e-2, cached=cached)
        collator = PairCollator(preprocess_fn=model.preprocess)
        folder = tmp_path / f"{checkpointing}-{free_bytes}"
        loss = EmbeddingLoss(model, InfoNce(0.05), mini_batch_size=4, cached=cached)
        fit(TrainingContext(run=base, stage=stage, folder=folder), model, loss, table_of(COLUMNS), collator)
        return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}, passes

    (plain, once), (checkpointed, twice) = train(False), train(True)
    assert any(value.abs().max() > 1e-3 for name, value in plain.items() if "lora_B" in name), "it trained"
    for name, value in plain.items():
        torch.testing.assert_close(checkpointed[name], value, rtol=1e-5, atol=1e-7)
    assert twice > once
    # Beside caching a GPU decides by its memory: another pass only where the activations do not fit.
    recomputed, kept = (train(True, free)[1] for free in (2**20, 2**40))
    assert recomputed - kept == (twice - once if cached else 0)
