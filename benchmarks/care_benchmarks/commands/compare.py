"""``care-bench compare``."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from care_qdrant.cli.options import json_option


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@json_option
def command(results: tuple[Path, ...], as_json: bool) -> None:
    """Compare every system of saved RESULTS with the first system of the first one, on the tasks that all have.

    Scores are paired query by query; a task whose data differ between results is refused.

    \b
    Example:
      care-bench compare results/before results/after
    """
    from care_benchmarks.comparison import compare_results
    from care_qdrant.cli.table import table

    found = compare_results(results)
    if as_json:
        click.echo(json.dumps([asdict(task) for task in found], ensure_ascii=False, indent=2))
        return
    header = ["task", "measure", "system", "score", "difference", "95 % interval", "p", "adjusted p"]
    rows = []
    for task in found:
        compared = {comparison.other: comparison for comparison in task.comparisons}
        for system, score in task.scores.items():
            row = [task.task, task.measure, system, f"{100 * score:.2f}"]
            if comparison := compared.get(system):
                low, high = comparison.interval.low, comparison.interval.high
                row += [
                    f"{100 * comparison.difference:+.2f}",
                    f"{100 * low:+.2f} … {100 * high:+.2f}",
                    f"{comparison.p_value:.4f}",
                    f"{comparison.adjusted_p_value:.4f}",
                ]
            rows.append([*row, *[""] * (len(header) - len(row))])
    click.echo(table(header, rows, width=1_000))
