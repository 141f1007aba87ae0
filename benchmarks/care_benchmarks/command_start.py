"""What the commands cost from a cold start, each in a fresh process: CPU seconds, and whether torch was read."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import Fields, Row
from care_qdrant.ingestion.run import ingest
from care_qdrant.model import CareModel
from care_qdrant.store.connection import open_client

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


def measure_starts(corpus: Path, model: str, rounds: int) -> list[Start]:
    """Measure ``care --help`` and ``care search`` on an embedded collection of `DOCUMENTS` documents."""
    with tempfile.TemporaryDirectory() as folder:
        with open_client(path=Path(folder)) as client, Corpus(corpus, Fields()) as rows:
            documents = (row.document for row in rows if isinstance(row, Row))
            ingest(islice(documents, DOCUMENTS), CareModel.load(model), client, "docs")
        search = ["search", QUERY, "--path", folder, "--model", model, "--json"]
        return [_measure(arguments, rounds) for arguments in (["--help"], search)]


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


def as_json(starts: Sequence[Start], machine: dict[str, object]) -> str:
    """Give the result file."""
    return json.dumps({"machine": machine, "documents": DOCUMENTS, "starts": [asdict(s) for s in starts]}, indent=1)
