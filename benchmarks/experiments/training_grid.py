"""The paper's ablations: a grid of presets and seeds, as means, paired intervals and the fraction of the gap closed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from care_benchmarks.machine import describe_machine
from care_benchmarks.statistics import CONFIDENCE, RESAMPLES, SEED, Interval, Sample
from care_trainer.cli.run import progress_bars, quiet
from care_trainer.config import find_config, load_run
from care_trainer.config.presets import PRESETS

from care_qdrant.console.logs import set_up_logs

from .training_cells import FULL, Cell, Work, run_grid

SMALL, LARGE = "symmetric-query", "symmetric-document"
"""Presets at the ends of the gap: one encoder on both sides."""
MEASURE = "nDCG@10"
_RESAMPLE_BATCH = 512


@dataclass(frozen=True)
class Line:
    """One preset over its seeds."""

    preset: str
    table: str
    """Table of the paper."""
    seeds: list[int]
    means: dict[str, float]
    """Means over queries and seeds, by measure."""
    by_seed: list[float]
    """Mean nDCG@10 of each seed."""
    against: str
    """The preset that the others are compared with."""
    difference: float | None
    """Difference of nDCG@10 from that preset, over the seeds that both have."""
    interval: Interval | None
    """Interval of the difference."""
    gap_closed: float | None
    """0 is the small encoder on both sides, 1 the large encoder."""
    gap_interval: Interval | None
    work: list[Work]
    """Mean cost of each stage over seeds."""

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time of all stages of one cell, shared stages included."""
        return sum(work.cpu_seconds for work in self.work)

    @property
    def rows(self) -> int:
        """Return the number of pairs and texts seen in all stages of one cell."""
        return sum(work.rows for work in self.work)


def lines(cells: Sequence[Cell], against: str = FULL) -> list[Line]:
    """Return a line for each preset, in the order of first appearance."""
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
    """Return scores (presets, seeds, queries) over the seeds that all presets have; None if there is no such seed."""
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
    """Return the lines with their sums, for a result file."""
    return [{**asdict(line), "cpu_seconds": round(line.cpu_seconds, 1), "rows": line.rows} for line in found]


def as_markdown(found: Sequence[Line]) -> str:
    """Return the lines as a Markdown table with a legend."""
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


def resampled_means(scores: Sample) -> Sample:
    """Return bootstrap means (`RESAMPLES`, systems) of scores (systems, seeds, queries), redrawing queries and seeds.

    Every system has the same draws, so that values derived from two columns are paired. With few seeds their part of
    the spread is underestimated: of three seeds, one resample in nine is a single seed.
    """
    systems, seeds, queries = scores.shape
    random = np.random.default_rng(SEED)
    means = np.empty((RESAMPLES, systems))
    for start in range(0, RESAMPLES, _RESAMPLE_BATCH):
        count = min(_RESAMPLE_BATCH, RESAMPLES - start)
        of_queries = random.multinomial(queries, np.full(queries, 1 / queries), count) / queries
        of_seeds = random.multinomial(seeds, np.full(seeds, 1 / seeds), count) / seeds
        means[start : start + count] = np.einsum("syq,rq,ry->rs", scores, of_queries, of_seeds, optimize=True)
    return means


def percentiles(values: Sample) -> Interval:
    """Return the interval that holds `CONFIDENCE` of the resampled values."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))


@click.command()
@click.argument("config")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of CONFIG; repeatable.")
@click.option("--presets", required=True, help="Names between commas; full is CONFIG itself (see: care-train presets).")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds between commas.")
@click.option("--against", default=FULL, show_default=True, help="Preset that the others are compared with.")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the grid.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Writes OUTPUT.json and OUTPUT.md.")
def main(
    config: str, overrides: tuple[str, ...], presets: str, seeds: str, against: str, work: Path, output: Path
) -> None:
    """Train and score CONFIG under presets and seeds; if stopped, run it again to continue.

    The tables are written again after each cell.

    \b
    Example:
      python -m benchmarks.experiments.training_grid pretrained-document --set data_root=data \\
        --presets full,without-align,symmetric-query,symmetric-document --work runs/grid --output ablations
    """
    if against != FULL and against not in presets.split(","):
        raise click.BadParameter(f"{against} is not among the --presets", param_hint="--against")
    torch.set_num_threads(1)
    set_up_logs()
    quiet()
    run = load_run(find_config(config), overrides)
    machine = asdict(describe_machine())
    cells: list[Cell] = []
    with progress_bars(visible=True) as report:
        for cell in run_grid(run, presets.split(","), [int(seed) for seed in seeds.split(",")], work, report):
            cells.append(cell)
            table = lines(cells, against)
            result = {"machine": machine, "run": asdict(run), "lines": as_json(table)}
            output.with_suffix(".json").write_text(
                json.dumps(result, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
            )
            output.with_suffix(".md").write_text(as_markdown(table), encoding="utf-8")
    click.echo(output.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
