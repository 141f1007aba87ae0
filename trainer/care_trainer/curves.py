"""The curves of a run in one PNG: the loss of each stage, and the score after each."""

import json
from pathlib import Path
from typing import Any

from care_trainer.chain import STAGE_FILE, read_record
from care_trainer.config import Run
from care_trainer.fitting import METRICS_FILE
from care_trainer.parse import stage_name

CURVES_FILE = "curves.png"


def draw_curves(run: Run) -> Path:
    """Draw ``curves.png`` into the output folder of a run, of the stages that are finished, and give its path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    output = Path(run.output)
    folders = [output / stage_name(stage) for stage in run.stage if (output / stage_name(stage) / STAGE_FILE).exists()]
    curves = {folder.name: losses for folder in folders if (losses := _losses(folder))}
    figure, panels = pyplot.subplots(1, len(curves) + 1, figsize=(3.2 * (len(curves) + 1), 3), squeeze=False)
    for panel, (name, losses) in zip(panels[0], curves.items(), strict=False):
        panel.plot(*zip(*losses, strict=True))
        panel.set(title=name, xlabel="step", ylabel="loss")
    _draw_scores(panels[0][-1], folders)
    figure.tight_layout()
    path = output / CURVES_FILE
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _losses(folder: Path) -> list[tuple[int, float]]:
    path = folder / METRICS_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def _draw_scores(panel: Any, folders: list[Path]) -> None:
    scores = {folder.name: (read_record(folder).get("evaluation") or {}).get("ndcg@10") for folder in folders}
    known = {name: score for name, score in scores.items() if score is not None}
    panel.plot(list(known), list(known.values()), marker="o")
    panel.set(title="evaluation", ylabel="nDCG@10")
    panel.tick_params(axis="x", rotation=45)
