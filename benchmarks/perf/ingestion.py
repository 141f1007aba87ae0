"""Throughput and memory of ingestion, with ready vectors instead of a model."""

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
from qdrant_client import QdrantClient, models

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import point_id
from tests.reliability.processes import standin_server
from tests.reliability.ready_model import ReadyModel, write_corpus

from .measured import output_option, plain, save_measured, scratch_option, shown


@dataclass(frozen=True, slots=True)
class Throughput:
    """Points per second into an embedded collection."""

    points: int
    dim: int
    stock_points_per_second: list[float]
    care_points_per_second: list[float]
    """Includes reading, hashing and the exact count, which the stock client does not do."""
    ratio: float
    """Ratio of the medians."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One ingestion in a process of its own."""

    rows: int
    points: int
    peak_memory_mib: float
    """Peak resident memory of the whole process."""
    documents_per_second: float


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def ingestion() -> None:
    """Measure ingestion.

    \b
    Example:
      python -m benchmarks.perf.ingestion throughput --output benchmarks/results/ingestion-throughput.json
    """


@ingestion.command()
@click.option("--points", type=click.IntRange(1), default=2_000, show_default=True, help="Documents, one point each.")
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Length of the vectors.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Measurements of each way.")
@scratch_option
@output_option
def throughput(points: int, dim: int, repeats: int, scratch: Path | None, output: Path) -> None:
    """Compare embedded ingestion with the stock client's upload_points.

    \b
    Example:
      python -m benchmarks.perf.ingestion throughput --output benchmarks/results/ingestion-throughput.json
    """
    stock, care = [], []
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        corpus = write_corpus(folder / "corpus.jsonl", points, sentences=2)
        for number in range(repeats):
            stock.append(round(points / _stock_seconds(corpus, folder / f"stock-{number}", dim), 1))
            care.append(round(points / _care_seconds(corpus, folder / f"care-{number}", dim), 1))
    ratio = round(median(care) / median(stock), 2)
    save_measured(output, asdict(shown(Throughput(points, dim, stock, care, ratio))))


@ingestion.command()
@click.option(
    "--rows",
    type=click.IntRange(1),
    multiple=True,
    default=(10_000, 500_000),
    show_default=True,
    help="Sizes to measure; repeatable.",
)
@click.option("--dim", type=click.IntRange(1), default=8, show_default=True, help="Length of the vectors.")
@scratch_option
@output_option
def memory(rows: Sequence[int], dim: int, scratch: Path | None, output: Path) -> None:
    """Compare the peak memory of ingesting few and many rows into a server.

    \b
    Example:
      python -m benchmarks.perf.ingestion memory --output benchmarks/results/ingestion-memory.json
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        results = [shown(_measure_memory(Path(folder), number, dim)) for number in sorted(rows)]
    growth = round(results[-1].peak_memory_mib - results[0].peak_memory_mib, 1)
    save_measured(output, {"growth_mib": growth, "runs": plain(results)})


def _stock_seconds(corpus: Path, folder: Path, dim: int) -> float:
    encoder = ReadyModel(dim).document_encoder
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    vectors = encoder.encode([row["text"] for row in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = QdrantClient(path=str(folder))
        params = models.VectorParams(size=dim, distance=models.Distance.COSINE)
        client.create_collection("corpus", vectors_config={"ready": params})
        start = time.perf_counter()
        client.upload_points(
            "corpus",
            (
                models.PointStruct(id=point_id(row["id"]), vector={"ready": vector.tolist()}, payload=row)
                for row, vector in zip(rows, vectors, strict=True)
            ),
            wait=True,
        )
        seconds = time.perf_counter() - start
        client.close()
    return seconds


def _care_seconds(corpus: Path, folder: Path, dim: int) -> float:
    with open_client(path=folder) as client:
        return ingest(corpus, ReadyModel(dim, max_tokens=512), client, "corpus").seconds


def _measure_memory(scratch: Path, rows: int, dim: int) -> Memory:
    corpus = write_corpus(scratch / f"rows-{rows}.jsonl", rows, sentences=1)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.perf.ingest_worker"]
    with standin_server("counting") as url:
        done = subprocess.run([*command, str(corpus), url, str(dim)], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    return Memory(rows, report["points"], report["peak_memory_mib"], report["documents_per_second"])


if __name__ == "__main__":
    ingestion()
