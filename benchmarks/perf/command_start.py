"""CPU time of ``care --help`` and ``care search`` from a cold start, each in a fresh process."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import Fields
from care_qdrant.index.ingest import ingest
from care_qdrant.model.pair import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Document

from .measured import output_option, plain, save_measured, shown

DOCUMENTS = 200
QUERY = "糖尿病人能吃西瓜吗"
_HEAVY = {"torch", "transformers", "sentence_transformers"}
_PROGRAM = """
import resource, sys
from care_qdrant.cli import care
sys.argv[0] = "care"
care.main(sys.argv[1:], standalone_mode=False)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, ",".join(sorted(sys.modules)), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Start:
    """One command."""

    command: str
    cpu_seconds: float
    """Median of the rounds."""
    rounds_cpu_seconds: list[float]
    reads_torch: bool


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", default="built-in", show_default=True, help="Model, as in care search.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Fresh processes per command.")
@output_option
def main(corpus: Path, model: str, rounds: int, output: Path) -> None:
    """Measure the cold start of the commands, on an embedded collection of the first documents of CORPUS.

    \b
    Example:
      python -m benchmarks.perf.command_start examples/sample/corpus.jsonl \\
        --output benchmarks/results/command-start.json
    """
    with tempfile.TemporaryDirectory() as folder:
        with open_client(path=Path(folder)) as client, Corpus(corpus, Fields()) as rows:
            documents = (row for row in rows if isinstance(row, Document))
            ingest(islice(documents, DOCUMENTS), CareModel.load(model), client, "docs")
        search = ["search", QUERY, "--path", folder, "--model", model, "--json"]
        starts = [shown(_measure(arguments, rounds)) for arguments in (["--help"], search)]
    save_measured(output, {"documents": DOCUMENTS, "starts": plain(starts)})


def _measure(arguments: Sequence[str], rounds: int) -> Start:
    runs = [_run(arguments) for _ in range(rounds)]
    seconds = [cpu for cpu, _ in runs]
    return Start(
        command=f"care {arguments[0]}",
        cpu_seconds=round(statistics.median(seconds), 3),
        rounds_cpu_seconds=[round(cpu, 3) for cpu in seconds],
        reads_torch=any(_HEAVY & modules for _, modules in runs),
    )


def _run(arguments: Sequence[str]) -> tuple[float, set[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    cpu, _, modules = done.stderr.splitlines()[-1].partition(" ")
    return float(cpu), set(modules.split(","))


if __name__ == "__main__":
    main()
