"""A picture of a run in one PNG: the score after each stage, then the loss of each."""

from pathlib import Path
from typing import Any

from care_trainer.config import Run, stage_name
from care_trainer.needs import STAGE_FILE
from care_trainer.recipe import read_record
from care_trainer.training.callbacks import read_losses

CURVES_FILE = "curves.png"
MOST_COLUMNS = 4


def draw_curves(run: Run) -> Path:
    """Draw the finished stages of a run into ``curves.png`` in its output folder, and return its path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    output = Path(run.output)
    folders = [output / stage_name(stage) for stage in run.stage if (output / stage_name(stage) / STAGE_FILE).exists()]
    curves = {folder.name: losses for folder in folders if (losses := read_losses(folder))}
    columns = min(MOST_COLUMNS, len(curves) + 1)
    rows = -(-(len(curves) + 1) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(3.4 * columns, 2.9 * rows), squeeze=False)
    panels = list(grid.flat)
    _draw_scores(panels[0], folders)
    for panel, (name, losses) in zip(panels[1:], curves.items(), strict=False):
        panel.plot(*zip(*losses, strict=True))
        panel.set(title=name, xlabel="step", ylabel="loss")
    for panel in panels[len(curves) + 1 :]:
        panel.set_axis_off()
    figure.suptitle(run.name)
    figure.tight_layout()
    path = output / CURVES_FILE
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _draw_scores(panel: Any, folders: list[Path]) -> None:
    """Draw the score after each stage, not joined: before Stage I a stage is scored by its encoder on both sides."""
    scores = {folder.name: (read_record(folder).get("evaluation") or {}).get("ndcg@10") for folder in folders}
    known = {name: score for name, score in scores.items() if score is not None}
    panel.plot(list(known.values()), list(known), linestyle="", marker="o")
    for number, score in enumerate(known.values()):
        panel.annotate(f"{score:.3f}", (score, number), (6, 0), textcoords="offset points", va="center", fontsize=8)
    panel.margins(x=0.25, y=0.1)
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.3)
    panel.set(title="after each stage", xlabel="nDCG@10")
