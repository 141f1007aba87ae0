"""Throughput, memory and encoder idle time of ingestion, with ready vectors instead of a model."""

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

from care_qdrant.encoders.local.torch import TorchEncoder
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import point_id
from tests.reliability.processes import QdrantServer, standin_server
from tests.reliability.ready_model import ReadyModel, write_corpus

from .engines import make_texts, write_model
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


@dataclass(frozen=True, slots=True)
class Idle:
    """One ingestion: with an encoder that sleeps, as the CPU does while a GPU works, or with the torch engine."""

    target: str
    encoder_documents_per_second: float
    documents: int
    documents_per_second: float
    encoder_idle_fraction: float
    """Fraction of the time from the first to the end of the last batch; high on a busy machine."""
    core_share: float
    """CPU time of the process divided by the time that the encoder worked: cores that one encoder needs."""
    padding: float | None = None
    """Padded tokens for each token, of the torch engine."""


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


@ingestion.command()
@click.option(
    "--documents", type=click.IntRange(1), default=20_000, show_default=True, help="Documents, one point each."
)
@click.option(
    "--rate",
    type=click.FloatRange(1),
    default=720,
    show_default=True,
    help="Documents per second of the encoder; a 4B model on an H200 reaches about 720 of 150 tokens.",
)
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Length of the vectors.")
@click.option("--binary", envvar="QDRANT_BINARY", help="Program of a Qdrant server, for the torch engine beside it.")
@click.option(
    "--torch-documents",
    type=click.IntRange(1),
    multiple=True,
    default=(1_000,),
    show_default=True,
    help="Documents for the torch engine, a random Qwen3 of 4 layers of 256 on the CPU; repeatable.",
)
@scratch_option
@output_option
def idle(
    documents: int,
    rate: float,
    dim: int,
    binary: str | None,
    torch_documents: Sequence[int],
    scratch: Path | None,
    output: Path,
) -> None:
    """Measure how long an encoder waits for reading and writing: one of a given speed, and the torch engine.

    \b
    Example:
      python -m benchmarks.perf.ingestion idle --output benchmarks/results/ingestion-waiting.json
    """
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        targets = ("server", "embedded")
        results = [shown(_measure_idle(folder, target, documents, rate, dim)) for target in targets]
        if binary is not None:
            results += [shown(_measure_torch(folder / str(number), number, binary)) for number in torch_documents]
    save_measured(output, {"runs": plain(results)})


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


def _measure_idle(scratch: Path, target: str, documents: int, documents_per_second: float, dim: int) -> Idle:
    corpus = write_corpus(scratch / f"idle-{target}.jsonl", documents, sentences=6)
    model = ReadyModel(dim, max_tokens=512, texts_per_second=documents_per_second)
    settings = IngestSettings(batch_tokens=8_192)
    start = time.process_time()
    if target == "server":
        with standin_server("counting") as url, open_client(url=url) as client:
            report = ingest(corpus, model, client, "corpus", settings=settings)
    else:
        with open_client(path=scratch / "idle") as client:
            report = ingest(corpus, model, client, "corpus", settings=settings)
    core_share = (time.process_time() - start) * documents_per_second / documents
    return Idle(
        target=target,
        encoder_documents_per_second=documents_per_second,
        documents=documents,
        documents_per_second=report.documents_per_second,
        encoder_idle_fraction=report.encoder_idle_fraction,
        core_share=round(core_share, 3),
    )


def _measure_torch(scratch: Path, documents: int, binary: str) -> Idle:
    """Ingest texts with the lengths of passages into a server of its own, on the same cores."""
    model = CareModel.load(write_model(scratch / "qwen3", hidden=256, layers=4), device="cpu")
    assert isinstance(model.document_encoder, TorchEncoder)
    texts = make_texts(model.document_encoder, documents, seed=0)
    rows = (json.dumps({"id": str(number), "text": text}, ensure_ascii=False) for number, text in enumerate(texts))
    corpus = scratch / "corpus.jsonl"
    corpus.write_text("\n".join(rows) + "\n", encoding="utf-8")
    (scratch / "server").mkdir()
    with QdrantServer(binary, scratch / "server") as server, open_client(url=server.url) as client:
        start = time.process_time()
        report = ingest(corpus, model, client, "corpus")
    busy = report.seconds * (1 - report.encoder_idle_fraction)
    return Idle(
        target="Qdrant server, torch engine",
        encoder_documents_per_second=round(documents / busy, 1),
        documents=documents,
        documents_per_second=report.documents_per_second,
        encoder_idle_fraction=report.encoder_idle_fraction,
        core_share=round((time.process_time() - start) / busy, 3),
        padding=report.engine["padding"],
    )


if __name__ == "__main__":
    ingestion()
