"""``care-bench report``."""

from pathlib import Path

import click


@click.command()
@click.argument("result", type=click.Path(path_type=Path, file_okay=False, exists=True))
def command(result: Path) -> None:
    """Write report.md and report.html of a saved RESULT again, as this version draws them.

    \b
    Example:
      care-bench report benchmarks/results/dev
    """
    from care_benchmarks.report import HTML_FILE, write_report
    from care_benchmarks.results import load_result

    write_report(load_result(result), result)
    click.echo(result / HTML_FILE)
