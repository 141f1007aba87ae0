"""A chart of how far a model closes the gap between its encoders' symmetric models, over a sweep of grids."""

import json
from pathlib import Path

import click
from care_benchmarks.charts import Gap, gaps
from care_benchmarks.statistics import Interval

from .training_cells import FULL
from .training_grid import LARGE, MEASURE, SMALL


def read_gap(path: Path) -> Gap:
    """Return the pair of a grid's result, named after its file."""
    lines = {line["preset"]: line for line in json.loads(path.read_text(encoding="utf-8"))["lines"]}
    if missing := {SMALL, FULL, LARGE} - lines.keys():
        raise click.BadParameter(f"{path}: its grid has no {', '.join(sorted(missing))}, which a gap needs")
    small, pair, large = (lines[preset] for preset in (SMALL, FULL, LARGE))
    scores = [line["means"][MEASURE] for line in (small, pair, large)]
    return Gap(path.stem, *scores, pair["gap_closed"], Interval(**pair["gap_interval"]))


@click.command()
@click.argument("grids", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--sweep", required=True, help="What the grids differ in, the label of the axis.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="SVG file.")
def main(grids: tuple[Path, ...], sweep: str, output: Path) -> None:
    """Draw the pairs of GRIDS, results of the training grid with full, symmetric-query and symmetric-document.

    \b
    Example:
      python -m benchmarks.experiments.gap_chart small.json large.json --sweep "document encoder" --output gap.svg
    """
    output.write_text(gaps([read_gap(path) for path in grids], MEASURE, sweep) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
