import json
from pathlib import Path

import pytest
from care_trainer import recipe

from care_qdrant.errors import InputError
from tests.trainer.tiny_run import stage, tiny_run

REPORT = 'report_to=["{}"]'


def test_tensorboard_has_the_losses_of_metrics_jsonl_after_the_stage(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tiny_run(tmp_path, stage("supervised", max_steps=4), overrides=[REPORT.format("tensorboard")])
    recipe.run_stages(run)
    folder = Path(run.output) / "supervised"
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train/loss")]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    logged = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    assert [step for step, _ in shown] == [step for step, _ in logged] == [1, 2, 3, 4]
    assert [value for _, value in shown] == pytest.approx([value for _, value in logged], rel=1e-5)


def test_a_tracker_that_is_not_installed_is_one_line_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path, stage("supervised"), overrides=[REPORT.format("trackio")])
    monkeypatch.setattr("sys.path", [])  # a machine that has nothing installed
    with pytest.raises(InputError, match="report_to: trackio is not installed: pip install trackio"):
        recipe.run_stages(run)
    assert not Path(run.output).exists()
