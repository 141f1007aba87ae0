"""``care-bench scale``."""

import logging
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from care_benchmarks.measured import output_option, save_measured, scratch_option


@click.command()
@click.option("--documents", type=click.IntRange(1), default=1_000_000, show_default=True, help="Of the made-up task.")
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Of the vectors.")
@click.option(
    "--where", type=click.Choice(["server", "embedded"]), default="server", show_default=True, help="What holds them."
)
@scratch_option
@output_option
def command(documents: int, dim: int, where: Literal["server", "embedded"], scratch: Path | None, output: Path) -> None:
    """Run the harness over a large made-up retrieval task, and measure the memory of its own process.

    The server is the tests' stand-in over Qdrant's own engine (qdrant-edge), in a process of its own: run this in a
    checkout. One size per process, since the figures are peaks. A million documents of 768 dimensions take 15 GB of
    disk for a while.

    \b
    Example:
      care-bench scale --documents 1000000 --output benchmarks/results/scale-server-1000000.json
    """
    from care_benchmarks.scale import measure_scale

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        found = measure_scale(Path(folder), where, documents, dim)
    save_measured(output, asdict(found))
