"""CPU time of ``care --help`` and ``care search`` from a cold start, and of what they import, in fresh processes.

Another checkout of this repository can take its turns: it searches a collection that it has made itself.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import Fields
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Document
from tests.reliability.processes import standin_server

from .measured import output_option, plain, save_measured, shown

DOCUMENTS = 200
QUERY = "糖尿病人能吃西瓜吗"
ROOT = Path(__file__).parents[2]
_CLIENT = "import qdrant_client"
_OTHER = "care search, the other checkout"
_HEAVY = {"torch", "transformers", "sentence_transformers"}
_PROGRAM = """
import sys
from care_qdrant.cli import care
sys.argv[0] = "care"
care.main(sys.argv[1:], standalone_mode=False)
"""
_USED = """
import resource, sys
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
    of_client_import: float
    """CPU time as a multiple of `import qdrant_client` alone, the median of the rounds, which take turns."""


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", default="built-in", show_default=True, help="Model, as in care search.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Fresh processes per command.")
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Another checkout, with an included model of its own, whose `care search` is measured, too.",
)
@output_option
def main(corpus: Path, model: str, rounds: int, against: Path | None, output: Path) -> None:
    """Measure the cold start of the commands, on an embedded collection of the first documents of CORPUS.

    \b
    Example:
      python -m benchmarks.perf.command_start examples/sample/corpus.jsonl \\
        --output benchmarks/results/command-start.json
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other, standin_server() as url:
        targets: list[dict[str, Any]] = [{"path": Path(folder)}, {"url": url}]
        for target in targets:
            with open_client(**target) as client, Corpus(corpus, Fields()) as rows:
                documents = (row for row in rows if isinstance(row, Document))
                with_bm25 = IngestSettings(sparse=True)
                ingest(islice(documents, DOCUMENTS), CareModel.load(model), client, "docs", settings=with_bm25)
        search = ["search", QUERY, "--model", model, "--json"]
        programs: dict[str, tuple[str, list[str], Path]] = {
            _CLIENT: ("import qdrant_client", [], ROOT),
            "care --help": (_PROGRAM, ["--help"], ROOT),
            "care search": (_PROGRAM, [*search, "--path", folder], ROOT),
            "care search --url": (_PROGRAM, [*search, "--url", url], ROOT),
            "care search --url --mode sparse": (_PROGRAM, [*search[:2], "--url", url, "--mode", "sparse"], ROOT),
        }
        if against is not None:
            filled = [str(corpus.resolve()), "--limit", str(DOCUMENTS), "--path", other, "--collection", "docs"]
            _run(_PROGRAM, ["ingest", *filled], against)
            programs[_OTHER] = (_PROGRAM, ["search", QUERY, "--json", "--path", other], against)
        for program in programs.values():
            _run(*program)  # which writes the bytecode that an installation has
        turns = [{name: _run(*program) for name, program in programs.items()} for _ in range(rounds)]
    starts = [shown(_start(name, turns)) for name in programs]
    own = [start for start in starts if start.command != _OTHER]
    others = [start for start in starts if start.command == _OTHER]
    save_measured(output, {"documents": DOCUMENTS, "starts": plain(own), "other_checkout": plain(others)})


def _start(name: str, turns: Sequence[dict[str, tuple[float, set[str]]]]) -> Start:
    seconds = [turn[name][0] for turn in turns]
    return Start(
        command=name,
        cpu_seconds=round(statistics.median(seconds), 3),
        rounds_cpu_seconds=[round(cpu, 3) for cpu in seconds],
        reads_torch=any(_HEAVY & turn[name][1] for turn in turns),
        of_client_import=round(statistics.median(turn[name][0] / turn[_CLIENT][0] for turn in turns), 3),
    )


def _run(program: str, arguments: Sequence[str], checkout: Path) -> tuple[float, set[str]]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-W", "ignore", "-c", program + _USED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=checkout)
    cpu, _, modules = done.stderr.splitlines()[-1].partition(" ")
    return float(cpu), set(modules.split(","))


if __name__ == "__main__":
    main()
