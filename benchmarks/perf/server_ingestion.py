"""CPU time and wall time of ingestion into a server, against the stock client's ``upload_points`` in the same run."""

import json
import resource
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import click
from qdrant_client import QdrantClient, models

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import point_id
from tests.reliability.ready_model import ReadyModel, write_corpus

from .measured import output_option, plain, save_measured, scratch_option, shown

Way = Literal["care", "upload_points"]


@dataclass(frozen=True, slots=True)
class Upload:
    """One load of a new collection."""

    way: Way
    grpc: bool
    client_cpu_seconds_per_10k: float
    """User and system time of this process, all threads."""
    points_per_second: float


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="QDRANT_URL", required=True, help="URL of a Qdrant server; its collections are kept.")
@click.option("--grpc-port", type=click.IntRange(1, 65_535), help="gRPC port.  [default: the port of the URL plus one]")
@click.option("--points", type=click.IntRange(1), default=30_000, show_default=True, help="Documents, one point each.")
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Length of the vectors.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Measurements of each way.")
@scratch_option
@output_option
def main(
    url: str, grpc_port: int | None, points: int, dim: int, repeats: int, scratch: Path | None, output: Path
) -> None:
    """Compare ingestion, which also reads, hashes, compares and counts, with upload_points over HTTP and gRPC.

    \b
    Example:
      python -m benchmarks.perf.server_ingestion --url http://localhost:6333 \\
        --output benchmarks/results/server-ingestion.json
    """
    uploads: list[Upload] = []
    ways: tuple[Way, ...] = ("care", "upload_points")
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        corpus = write_corpus(Path(folder) / "corpus.jsonl", points, sentences=2)
        for _ in range(repeats):
            for grpc in (False, True):
                with open_client(url=url, grpc=grpc, grpc_port=grpc_port) as client:
                    version = client.info().version
                    uploads += [shown(_measure(client, way, grpc, corpus, points, dim)) for way in ways]
    save_measured(
        output,
        {
            "server": version,
            "points": points,
            "dim": dim,
            "client_cpu_ratio": _ratios(uploads, "client_cpu_seconds_per_10k"),
            "points_per_second_ratio": _ratios(uploads, "points_per_second"),
            "uploads": plain(uploads),
        },
    )


def _measure(client: QdrantClient, way: Way, grpc: bool, corpus: Path, points: int, dim: int) -> Upload:
    name = f"care-perf-{uuid.uuid4().hex[:8]}"
    cpu, start = _cpu_seconds(), time.perf_counter()
    try:
        if way == "care":
            ingest(corpus, ReadyModel(dim, max_tokens=128), client, name, settings=IngestSettings(grpc=grpc))
        else:
            _upload(client, name, corpus, dim)
        seconds = time.perf_counter() - start
        used = _cpu_seconds() - cpu
        found = client.count(name, exact=True).count
        if found != points:
            raise click.ClickException(f"{way}: {found} points were stored, expected {points}")
    finally:
        client.delete_collection(name)
    return Upload(way, grpc, round(used / points * 10_000, 3), round(points / seconds, 1))


def _upload(client: QdrantClient, name: str, corpus: Path, dim: int) -> None:
    """Load a collection as the stock client does, with the vectors and the smallest payload of the same documents.

    The server builds no graph meanwhile, as during an ingestion; else the graph takes cores of the client.
    """
    params = models.VectorParams(size=dim, distance=models.Distance.COSINE, hnsw_config=models.HnswConfigDiff(m=0))
    client.create_collection(name, {"v": params})
    client.upload_points(name, _points(corpus, dim), batch_size=256, parallel=1, wait=True)


def _points(corpus: Path, dim: int) -> Iterator[models.PointStruct]:
    """Yield points of what `json.loads` reads and of vectors that are lists already, as a script would."""
    rows = [{"v": row.tolist()} for row in ReadyModel(dim).document_encoder.vectors]
    with corpus.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            payload = {"doc_id": row["id"], "text": row["text"], **row.get("metadata", {})}
            yield models.PointStruct(id=point_id(row["id"]), vector=rows[number % len(rows)], payload=payload)


def _ratios(uploads: list[Upload], field: str) -> dict[str, float]:
    """Return the median of ours divided by the median of ``upload_points``, over HTTP and over gRPC."""

    def middle(way: Way, grpc: bool) -> float:
        return float(median(getattr(one, field) for one in uploads if (one.way, one.grpc) == (way, grpc)))

    ways = (("http", False), ("grpc", True))
    return {name: round(middle("care", grpc) / middle("upload_points", grpc), 3) for name, grpc in ways}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
