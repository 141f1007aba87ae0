"""``care-bench scale``."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.option(
    "--documents", type=click.IntRange(100), default=1_000_000, show_default=True, help="Of the made-up task."
)
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Of the ready vectors.")
@click.option("--scratch", type=click.Path(path_type=Path, file_okay=False), help="Where the task is written.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file for the result."
)
def command(documents: int, dim: int, scratch: Path | None, output: Path) -> None:
    """Measure the memory that reading, checking and indexing a large retrieval task takes.

    The server is the tests' stand-in, which counts points and cannot search: run this in a checkout. One size per
    process, since the figures are peaks.

    \b
    Example:
      care-bench scale --documents 1000000 --output benchmarks/results/scale-1000000.json
    """
    from care_benchmarks.machine import describe_machine
    from care_benchmarks.scale import measure_scale

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        found = measure_scale(Path(folder), documents, dim)
    result = {"dim": dim, **asdict(found), "machine": asdict(describe_machine())}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(asdict(found)))
