"""``care-bench scale``."""

import json
import logging
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click


@click.command()
@click.option("--documents", type=click.IntRange(1), default=1_000_000, show_default=True, help="Of the made-up task.")
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Of the vectors.")
@click.option(
    "--where", type=click.Choice(["server", "embedded"]), default="server", show_default=True, help="What holds them."
)
@click.option("--scratch", type=click.Path(path_type=Path, file_okay=False), help="Where task and points are written.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file for the result."
)
def command(documents: int, dim: int, where: Literal["server", "embedded"], scratch: Path | None, output: Path) -> None:
    """Run the harness over a large made-up retrieval task, and measure the memory of its own process.

    The server is the tests' stand-in over Qdrant's own engine (qdrant-edge), in a process of its own: run this in a
    checkout. One size per process, since the figures are peaks. A million documents of 768 dimensions take 15 GB of
    disk for a while.

    \b
    Example:
      care-bench scale --documents 1000000 --output benchmarks/results/scale-server-1000000.json
    """
    from care_benchmarks.machine import describe_machine
    from care_benchmarks.scale import measure_scale

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        found = measure_scale(Path(folder), where, documents, dim)
    result = {**asdict(found), "machine": asdict(describe_machine())}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(asdict(found)))
