"""Scores while a stage trains: the best weights are kept, a stage ends early, and a resume takes up the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from care_trainer import recipe
from care_trainer.config import Run
from care_trainer.models import towers
from care_trainer.stages.context import Context

from care_qdrant.errors import InputError
from tests.tiny import Killed
from tests.trainer.tiny_run import pairs, stage, tiny_run

TEXTS = [row["query"] for row in pairs()[:6]]


def _scored(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Let the evaluation set say these scores, one after the other."""
    remaining = iter(scores)
    monkeypatch.setattr(Context, "scoring", lambda self, model: lambda: next(remaining))


def _run(root: Path, **own: Any) -> Run:
    settings = {"max_steps": 8, "evaluate_steps": 1, "learning_rate": 1e-2, **own}
    return tiny_run(
        root, stage("supervised", **settings), overrides=["checkpoint_minutes=0", "query.scratch.dropout=0.0"]
    )


def _vectors(run: Run) -> Any:
    return towers.load(recipe.newest(run, "query")).encode_query(TEXTS)


def test_a_stage_ends_with_its_best_weights_and_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _scored(monkeypatch, [0.1, 0.3, 0.2, 0.3, 0.9])
    run = _run(tmp_path / "early", patience=2)
    recipe.run_stages(run)
    lines = (Path(run.output) / "supervised/evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["score"] for line in lines] == [0.1, 0.3, 0.2, 0.3], "two were no better"
    _scored(monkeypatch, [0.1, 0.3] + 6 * [0.0])
    whole = _run(tmp_path / "whole")
    recipe.run_stages(whole)
    np.testing.assert_array_equal(_vectors(run), _vectors(whole))
    _scored(monkeypatch, [float(at) for at in range(8)])
    last = _run(tmp_path / "last")
    recipe.run_stages(last)
    assert not np.allclose(_vectors(run), _vectors(last))


def test_killed_and_resumed_keeps_the_same_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [0.1, 0.5, 0.4, 0.3, 0.2, 0.45, 0.1, 0.1]
    _scored(monkeypatch, scores)
    whole = _run(tmp_path / "whole")
    recipe.run_stages(whole)

    def kill(what: str, step: int, steps: int, loss: float, tokens: int) -> None:
        if step == 5:
            raise Killed

    run = _run(tmp_path / "killed")
    _scored(monkeypatch, scores)
    with pytest.raises(Killed):
        recipe.run_stages(run, report=kill)
    _scored(monkeypatch, scores[4:])
    recipe.run_stages(run)
    files = [Path(one.output) / "supervised/evaluations.jsonl" for one in (whole, run)]
    assert files[0].read_text() == files[1].read_text()
    np.testing.assert_array_equal(_vectors(run), _vectors(whole))


@pytest.mark.parametrize("kind", ["joint", "align"])
def test_the_score_is_that_of_the_pair_on_held_out_data(tmp_path: Path, kind: str) -> None:
    run = tiny_run(tmp_path, stage(kind, evaluate_steps=3, evaluate=True))
    (record,) = recipe.run_stages(run)
    (line,) = (Path(run.output) / kind / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {"step": 3, "score": record["evaluation"]["ndcg@10"]}


def test_settings_that_could_score_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"evaluate_steps: needs an \[evaluation\] and a stage that trains"):
        tiny_run(tmp_path, stage("retromae", evaluate_steps=1))
