"""What a grid says: means over seeds, paired intervals against one of its presets, and the share of the gap closed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from care_trainer.config.presets import PRESETS

from care_benchmarks.statistics import CONFIDENCE, RESAMPLES, Interval, Sample, percentiles, resampled_means
from care_benchmarks.training.grid import FULL, Cell, Work

SMALL, LARGE = "symmetric-query", "symmetric-document"
"""The ends of the gap: each encoder on both sides."""
MEASURE = "nDCG@10"


@dataclass(frozen=True)
class Line:
    """One preset over its seeds."""

    preset: str
    table: str
    """Of the paper."""
    seeds: list[int]
    means: dict[str, float]
    """By measure, over queries and seeds."""
    by_seed: list[float]
    """Mean of nDCG@10 of each seed."""
    against: str
    """The preset that the others are compared with."""
    difference: float | None
    """Of nDCG@10 to that preset's, over the seeds that both have."""
    interval: Interval | None
    """Of the difference."""
    gap_closed: float | None
    """0 is the small encoder on both sides, 1 the large one."""
    gap_interval: Interval | None
    work: list[Work]
    """Of each stage, summed over seeds and divided by their number."""

    @property
    def cpu_seconds(self) -> float:
        """Of all stages of one cell, those that it shares included."""
        return sum(work.cpu_seconds for work in self.work)

    @property
    def rows(self) -> int:
        """Pairs and texts seen in all stages of one cell."""
        return sum(work.rows for work in self.work)


def lines(cells: Sequence[Cell], against: str = FULL) -> list[Line]:
    """Give a line for each preset, in the order in which they first come.

    Args:
        cells: Of the grid.
        against: The preset that the others are compared with.
    """
    presets = list(dict.fromkeys(cell.preset for cell in cells))
    found = {(cell.preset, cell.seed): cell for cell in cells}
    return [_line(preset, found, against) for preset in presets]


def _line(preset: str, cells: Mapping[tuple[str, int], Cell], against: str) -> Line:
    seeds = sorted(seed for name, seed in cells if name == preset)
    own = [cells[preset, seed] for seed in seeds]
    by_seed = [float(np.mean(cell.scores[MEASURE])) for cell in own]
    difference, interval = _difference(preset, against, cells)
    gap, gap_interval = _gap(preset, cells)
    return Line(
        preset=preset,
        table=PRESETS[preset].table if preset in PRESETS else "",
        seeds=seeds,
        means={name: float(np.mean([cell.scores[name] for cell in own])) for name in own[0].scores},
        by_seed=by_seed,
        against=against,
        difference=difference,
        interval=interval,
        gap_closed=gap,
        gap_interval=gap_interval,
        work=_mean_work(own),
    )


def _difference(
    preset: str, against: str, cells: Mapping[tuple[str, int], Cell]
) -> tuple[float | None, Interval | None]:
    scores = _common((preset, against), cells)
    if scores is None or preset == against:
        return None, None
    drawn = resampled_means(scores)
    return float(scores[0].mean() - scores[1].mean()), percentiles(drawn[:, 0] - drawn[:, 1])


def _gap(preset: str, cells: Mapping[tuple[str, int], Cell]) -> tuple[float | None, Interval | None]:
    scores = _common((preset, SMALL, LARGE), cells)
    if scores is None or preset in (SMALL, LARGE):
        return None, None
    own, small, large = scores.mean(axis=(1, 2))
    drawn = resampled_means(scores)
    share = (drawn[:, 0] - drawn[:, 1]) / (drawn[:, 2] - drawn[:, 1])
    return float((own - small) / (large - small)), percentiles(share)


def _common(presets: Sequence[str], cells: Mapping[tuple[str, int], Cell]) -> Sample | None:
    """Give scores (presets, seeds, queries) over the seeds that all of them have; None where there is none."""
    seeds = sorted(set.intersection(*({seed for name, seed in cells if name == preset} for preset in presets)))
    if not seeds:
        return None
    return np.array([[cells[preset, seed].scores[MEASURE] for seed in seeds] for preset in presets])


def _mean_work(cells: Sequence[Cell]) -> list[Work]:
    return [
        Work(
            stage=stages[0].stage,
            steps=round(np.mean([work.steps for work in stages])),
            rows=round(np.mean([work.rows for work in stages])),
            cpu_seconds=round(float(np.mean([work.cpu_seconds for work in stages])), 1),
        )
        for stages in zip(*(cell.work for cell in cells), strict=True)
    ]


def as_json(found: Sequence[Line]) -> list[dict[str, Any]]:
    """Give the lines with their sums, for a result file."""
    return [{**asdict(line), "cpu_seconds": round(line.cpu_seconds, 1), "rows": line.rows} for line in found]


def as_markdown(found: Sequence[Line]) -> str:
    """Give the lines as a table, and what its columns mean."""
    compared = f"against {found[0].against}"
    head = (
        f"| preset | table | nDCG@10 | of each seed | recall@100 | {compared} | gap closed | CPU s | rows seen |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    note = (
        f"\nIntervals: {CONFIDENCE:.0%}, paired, {RESAMPLES:,} bootstrap resamples of queries and of seeds. "
        f"Gap closed: 0 % is `{SMALL}`, 100 % `{LARGE}`. CPU seconds and rows: of all stages of one cell, without "
        "the document encoder's stored vectors."
    )
    return "\n".join([*head, *(_row(line) for line in found), note]) + "\n"


def _row(line: Line) -> str:
    cells = (
        line.preset,
        line.table,
        f"{line.means[MEASURE]:.3f}",
        " ".join(f"{value:.3f}" for value in line.by_seed),
        f"{line.means['R@100']:.3f}",
        _with_interval(line.difference, line.interval, lambda value: f"{value:+.3f}"),
        _with_interval(line.gap_closed, line.gap_interval, lambda value: f"{value:.0%}"),
        f"{line.cpu_seconds:.0f}",
        f"{line.rows:,}",
    )
    return f"| {' | '.join(cells)} |"


def _with_interval(value: float | None, interval: Interval | None, show: Any) -> str:
    if value is None or interval is None:
        return ""
    return f"{show(value)} ({show(interval.low)} … {show(interval.high)})"
