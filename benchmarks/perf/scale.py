"""A whole run over a retrieval task of any size: memory of the harness's own process, and what the queries find."""

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
from care_benchmarks.results import LoadPoint
from care_benchmarks.run import RunSettings, run
from care_benchmarks.search import EMBEDDED_LIMIT
from care_benchmarks.speed import SpeedSettings
from care_benchmarks.systems import EvaluatedSystem
from care_benchmarks.tasks import directory_tasks
from qdrant_client import QdrantClient

from care_qdrant.qdrant.connection import open_client

from .measured import output_option, save_measured, scratch_option
from .memory import Peak, watched_memory
from .numbered import numbered_pair, write_task

QUERIES = 100
SAMPLES = 100
Where = Literal["server", "embedded"]


@dataclass(frozen=True, slots=True)
class Scale:
    """One run, in a process of its own."""

    where: Where
    documents: int
    dim: int
    embedded_limit: int
    """Number of documents above which the harness warns in embedded mode."""
    before: Peak
    """Everything imported, the task on disk, nothing read."""
    after: Peak
    """The task read, checked, encoded, written, searched, scored and reported."""
    indexing_seconds: float
    documents_per_second: float
    ndcg_at_10: float
    """Each query has one relevant document, which exact search finds first."""
    speed: LoadPoint


@click.command()
@click.option("--documents", type=click.IntRange(1), default=1_000_000, show_default=True, help="Size of the corpus.")
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Length of the vectors.")
@click.option(
    "--where", type=click.Choice(["server", "embedded"]), default="server", show_default=True, help="Kind of Qdrant."
)
@click.option(
    "--url", envvar="QDRANT_URL", default="http://localhost:6333", show_envvar=True, help="URL of the server."
)
@scratch_option
@output_option
def main(documents: int, dim: int, where: Where, url: str, scratch: Path | None, output: Path) -> None:
    """Run the harness over a large generated task, and measure the memory of its own process.

    Measure one size
    per process, since the figures are peaks. A million documents of 768 dimensions take 15 GB of disk for a while.

    \b
    Example:
      python -m benchmarks.perf.scale --documents 1000000 --output benchmarks/results/scale-server-1000000.json
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        found = measure_scale(Path(folder), where, url, documents, dim)
    save_measured(output, asdict(found))


def measure_scale(scratch: Path, where: Where, url: str, documents: int, dim: int) -> Scale:
    """Run the harness over a generated task, as `care-bench run` does."""
    tasks = directory_tasks(write_task(scratch / "task", documents, QUERIES))
    pair = numbered_pair(dim)
    evaluated = EvaluatedSystem(pair.name, "vectors drawn from numbers", pair, "", "auto", None, "dense", 0, 0)
    settings = RunSettings(through="core", speed=SpeedSettings((1,), SAMPLES, cold_start=False))
    with _opened(where, url, scratch / "store") as client, watched_memory() as peak:
        before = Peak(**asdict(peak))
        result = run("scale", [evaluated], tasks, client, scratch / "result", settings=settings, command="scale")
    [system] = result.systems
    [indexing], [score] = system.indexing, system.scores
    assert system.speed is not None  # asked for above
    return Scale(
        where=where,
        documents=documents,
        dim=dim,
        embedded_limit=EMBEDDED_LIMIT,
        before=before,
        after=peak,
        indexing_seconds=indexing.seconds,
        documents_per_second=indexing.encoded / indexing.seconds,
        ndcg_at_10=score.value,
        speed=system.speed.whole[0],
    )


@contextmanager
def _opened(where: Where, url: str, store: Path) -> Iterator[QdrantClient]:
    if where == "embedded":
        with open_client(path=store) as client:
            yield client
    else:
        with open_client(url=url) as client:
            yield client


if __name__ == "__main__":
    main()
