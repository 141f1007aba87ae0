"""Batches: negatives of the epoch, prompts of the source, keys of the texts, scores."""

from pathlib import Path
from typing import Any

import pytest
import torch
from care_trainer.config import Data, Joint
from care_trainer.data.collators import PairCollator
from care_trainer.data.read import text_key
from care_trainer.data.table import Rows, pair_rows

from care_qdrant.errors import InputError
from tests.trainer.tiny_run import write_jsonl

ROWS: list[dict[str, Any]] = [
    {"query": "q1", "positive": "p1", "negatives": list("abcdefgh"), "source": "cmedqa"},
    {"query": "q2", "positive": "p2", "negatives": ["n"], "source": "cmedqa", "prompt": "问："},
    {"sentence1": "s1", "sentence2": "s2", "score": 0.5, "source": "sts"},
]
TASKS = {"sts": ("same: ", "same: "), "cmedqa": ("ask: ", "")}


class Recorded(PairCollator):
    """Keeps the texts as the tokenizer gets them."""

    def __init__(self, **options: Any) -> None:
        self.columns: list[list[str]] = []
        super().__init__(preprocess_fn=self._preprocess, **options)

    def _preprocess(self, texts: list[str], prompt: str | None = None, **_: Any) -> dict[str, torch.Tensor]:
        self.columns.append([f"{prompt or ''}{text}" for text in texts])
        return {"input_ids": torch.zeros(len(texts), 1)}


def _rows(tmp_path: Path) -> Rows:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    return pair_rows(Data(files=("rows.jsonl",)), tmp_path, tmp_path / "rows", by_source=True)


def _batch(tmp_path: Path, *rows: int, epoch: int = 0, **options: Any) -> tuple[dict[str, Any], list[list[str]]]:
    collator = Recorded(**options)
    collator.set_epoch(epoch)
    table = _rows(tmp_path).columns
    return collator([table[row] for row in rows]), collator.columns


def test_negatives_are_drawn_anew_in_each_epoch_and_again_when_it_is_repeated(tmp_path: Path) -> None:
    drawn = []
    for epoch in (0, 1, 2, 3, 3):
        _, (_, positives, *negatives) = _batch(tmp_path, 0, 1, epoch=epoch, negatives=3, seed=7)
        assert positives == ["p1", "p2"]
        own, other = zip(*negatives, strict=True)
        assert len(set(own)) == 3 and set(own) <= set("abcdefgh")
        assert other == ("n", "p2", "p2"), "too few: the positive is repeated, which the loss masks"
        drawn.append(own)
    assert drawn[-1] == drawn[-2] and len(set(drawn)) == 4
    _, (_, _, *alone) = _batch(tmp_path, 0, epoch=3, negatives=3, seed=7)
    assert tuple(column[0] for column in alone) == drawn[-1], "whatever else is in the batch"


def test_a_source_has_the_prompts_of_its_task_and_keys_are_those_of_the_text_alone(tmp_path: Path) -> None:
    batch, columns = _batch(tmp_path, 0, 1, prompts={"query": "q: ", "positive": "d: "})
    assert columns == [["q: q1", "q: 问：q2"], ["d: p1", "d: p2"]]
    assert batch["query_keys"].tolist() == [text_key("q1"), text_key("q2")]
    instructed, columns = _batch(tmp_path, 0, 1, prompts={"query": "q: "}, tasks=TASKS)
    assert columns == [["ask: q1", "ask: 问：q2"], ["p1", "p2"]]
    assert instructed["query_keys"].tolist() == batch["query_keys"].tolist()


def test_pairs_with_a_score_have_it_as_label_and_no_negatives(tmp_path: Path) -> None:
    batch, columns = _batch(tmp_path, 2, negatives=3, tasks=TASKS)
    assert columns == [["same: s1"], ["same: s2"]]
    assert batch["label"].tolist() == [0.5]
    assert "label" not in _batch(tmp_path, 0, negatives=3)[0]


def test_pairs_with_a_score_share_no_batch_with_others(tmp_path: Path) -> None:
    data = Data(files=("rows.jsonl",))
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(InputError, match=r"rows.jsonl: holds pairs with a score and pairs without.*batch_by_source"):
        pair_rows(data, tmp_path, tmp_path / "rows")
    write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"query": "q", "positive": "p", "source": "sts"}])
    with pytest.raises(InputError, match=r"source 'sts': holds pairs with a score and pairs without"):
        pair_rows(data, tmp_path, tmp_path / "rows", by_source=True)


def test_a_global_batch_is_kept_by_any_number_of_processes_or_refused() -> None:
    joint = Joint(kind="joint", data="pairs", global_batch_size=640)
    assert [joint.rows_of_process(processes) for processes in (1, 2, 8, 32)] == [640, 320, 80, 20]
    with pytest.raises(InputError, match=r"stage joint: global_batch_size 640 cannot be kept by 3 processes"):
        joint.rows_of_process(3)
    accumulated = Joint(kind="joint", data="pairs", global_batch_size=640, accumulate=4)
    assert accumulated.rows_of_process(8) == 20
    with pytest.raises(InputError, match="expected a multiple of 1024"):
        accumulated.rows_of_process(256)
    assert Joint(kind="joint", data="pairs").rows_of_process(5) == 64
