"""Progress lines of a stage that trains, and the settings of the loop around it."""

import contextlib
import os
import pty
import re
import termios
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from care_trainer import recipe
from care_trainer.cli.run import progress_bars
from care_trainer.data.collators import PairCollator
from care_trainer.losses.embedding import EmbeddingLoss
from care_trainer.losses.objectives import InfoNce
from care_trainer.models import towers
from care_trainer.training.context import TrainingContext
from care_trainer.training.loop import fit

from tests.tiny import Killed
from tests.trainer.tiny_run import pairs, stage, table_of, tiny_run

ROWS = pairs()[:16]
WORKERS = ["dataloader_workers=2"]


def _fit(
    query_folder: Path,
    folder: Path,
    *,
    negatives: int = 0,
    epochs: int = 2,
    crop: float = 0.3,
    report: Any = None,
    overrides: Sequence[str] = (),
) -> list[Any]:
    """Train epochs with drawn negatives and crops, and return what is reported of each step."""
    model = towers.load(query_folder)
    towers.make_trainable(model, side="query", lora=False)
    documents = [row["positive"] for row in ROWS]
    columns = {
        "query": [row["query"] for row in ROWS],
        "positive": documents,
        "negatives": [documents[at + 1 :] + documents[:at] for at in range(len(ROWS))],
        "label": list(range(len(ROWS))),
    }
    seen: list[Any] = []

    def note(what: str, *step: Any) -> None:
        seen.append(step)
        if report is not None:
            report(*step)

    settings = stage("supervised", batch_size=4, epochs=epochs, max_steps=None)
    run = tiny_run(folder, settings, overrides=["checkpoint_minutes=0", *overrides])
    context = TrainingContext(run=run, stage=run.stage[0], folder=folder / "stage", report=note)
    loss = EmbeddingLoss(model, InfoNce(0.05), mini_batch_size=4)
    collator = PairCollator(crop, preprocess_fn=model.preprocess, negatives=negatives)
    fit(context, model, loss, table_of(columns), collator)
    return seen


def test_the_progress_line_has_loss_tokens_a_second_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "0")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    drawn: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65_536):
                drawn.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with progress_bars(visible=True) as report:
            recipe.run_stages(tiny_run(tmp_path, stage("unsupervised", max_steps=4)), report=report)
        monkeypatch.undo()
    reader.join()
    os.close(ours)
    shown = b"".join(drawn).decode()
    assert re.search(
        r"unsupervised: 100%.* 4/4 steps \[.*loss \d+\.\d{4}, [1-9][\d,]* tokens/s, \d+\.\d GiB\]", shown
    ), shown


def test_the_tokens_of_an_epoch_are_those_of_its_texts(query_folder: Path, tmp_path: Path) -> None:
    model = towers.load(query_folder)
    texts = [row[side] for row in ROWS for side in ("query", "positive")]
    expected = sum(int(model.preprocess([text])["attention_mask"].sum()) for text in texts)
    tokens = [step[-1] for step in _fit(query_folder, tmp_path, epochs=1, crop=0.0)]
    assert len(tokens) == 4 and sum(tokens) == expected


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_dataloader_workers_make_the_same_batches_also_after_a_kill(query_folder: Path, tmp_path: Path) -> None:
    """Negatives are drawn anew in the second epoch, in the workers, too."""
    alone = _fit(query_folder, tmp_path / "alone", negatives=2)
    assert _fit(query_folder, tmp_path / "workers", negatives=2, overrides=WORKERS) == alone
    assert _fit(query_folder, tmp_path / "fewer", negatives=1) != alone, "the test would not see other negatives"

    def kill(step: int, *_: Any) -> None:
        if step == 6:
            raise Killed

    with pytest.raises(Killed):
        _fit(query_folder, tmp_path / "killed", negatives=2, overrides=WORKERS, report=kill)
    resumed = _fit(query_folder, tmp_path / "killed", negatives=2, overrides=WORKERS)
    assert resumed == alone[5:]


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_dataloader_workers_do_not_wait_for_the_threads_of_a_tokenizer(
    query_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word, training stood still where the environment asks for threads."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    towers.load(query_folder).tokenizer(["高血压"] * 64)  # its threads are begun in this process
    assert len(_fit(query_folder, tmp_path, epochs=1, overrides=WORKERS)) == 4
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_set_while_a_stage_trains_and_restored(query_folder: Path, tmp_path: Path, tf32: bool) -> None:
    found = []

    def stop(*_: Any) -> None:
        found.append(torch.get_float32_matmul_precision())
        raise Killed

    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(Killed):
            _fit(query_folder, tmp_path, overrides=[f"tf32={str(tf32).lower()}"], report=stop)
        assert torch.get_float32_matmul_precision() == "medium", "the caller's own"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found == ["high" if tf32 else "highest"]
