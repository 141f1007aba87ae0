"""CPU and wall time of ingestion into a server, in turn with the stock client and with LlamaIndex's stock store."""

import json
import resource
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal

import click
from llama_index.core.schema import TextNode
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.connection import open_client
from tests.reliability.processes import QdrantServer
from tests.reliability.ready_model import ReadyModel, write_corpus

from .measured import output_option, plain, save_measured, scratch_option, shown
from .own_server import cpu_seconds

Way = Literal["care", "upload_points", "llama-index"]
Load = Callable[[QdrantClient, str, Path, int], None]
NODES = 2_048
"""Nodes that the stock store gets at a time, as LlamaIndex's index gives them (``insert_batch_size``)."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One load of a new collection."""

    way: Way
    client_cpu_seconds_per_10k: float
    """User and system time of this process, all threads."""
    server_cpu_seconds_per_10k: float
    points_per_second: float


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--binary", envvar="QDRANT_BINARY", required=True, help="Server program, which is started on loopback.")
@click.option("--points", type=click.IntRange(1), default=20_000, show_default=True, help="Documents, one point each.")
@click.option("--dim", type=click.IntRange(1), default=768, show_default=True, help="Length of the vectors.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Measurements of each way.")
@scratch_option
@output_option
def main(binary: str, points: int, dim: int, repeats: int, scratch: Path | None, output: Path) -> None:
    """Compare ingestion, which also reads, hashes, compares and counts, with the stock ways, over HTTP.

    \b
    Example:
      python -m benchmarks.perf.server_ingestion --binary ./qdrant --output benchmarks/results/server-ingestion.json
    """
    uploads: list[Upload] = []
    with tempfile.TemporaryDirectory(dir=scratch) as folder, QdrantServer(binary, Path(folder)) as server:
        corpus = write_corpus(Path(folder) / "corpus.jsonl", points, sentences=2)
        for _ in range(repeats):
            with open_client(url=server.url) as client:
                version = client.info().version
                for way in WAYS:
                    uploads.append(shown(_measure(server, client, way, corpus, points, dim)))
    medians = {"http": _medians(uploads)}
    save_measured(output, {"server": version, "points": points, "dim": dim, "uploads": plain(uploads)} | medians)


def _measure(server: QdrantServer, client: QdrantClient, way: Way, corpus: Path, points: int, dim: int) -> Upload:
    name = f"care-perf-{uuid.uuid4().hex[:8]}"
    mine, theirs, start = _cpu_seconds(), cpu_seconds(server), time.perf_counter()
    WAYS[way](client, name, corpus, dim)
    seconds = time.perf_counter() - start
    mine, theirs = _cpu_seconds() - mine, cpu_seconds(server) - theirs
    found = client.count(name, exact=True).count
    if found != points:
        raise click.ClickException(f"{way}: {found} points were stored, expected {points}")
    client.delete_collection(name)
    each = 10_000 / points
    return Upload(way, round(mine * each, 3), round(theirs * each, 3), round(points / seconds, 1))


def _ingest(client: QdrantClient, name: str, corpus: Path, dim: int) -> None:
    """Load a collection as the commands do, but without index and graph, which the other ways do not make."""
    settings = IngestSettings(sparse=False, finish=False)
    ingest(corpus, ReadyModel(dim, max_tokens=128), client, name, settings=settings)


def _upload_points(client: QdrantClient, name: str, corpus: Path, dim: int) -> None:
    """Load a collection as the stock client does, with vectors that are lists and the smallest payload."""
    _create(client, name, "v", dim)
    vectors = ReadyModel(dim).document_encoder.vectors.tolist()

    def points() -> Iterator[models.PointStruct]:
        for number, row in enumerate(_rows(corpus)):
            payload = {"doc_id": row["id"], "text": row["text"], **row["metadata"]}
            yield models.PointStruct(id=_uuid(row["id"]), vector={"v": vectors[number % len(vectors)]}, payload=payload)

    client.upload_points(name, points(), batch_size=256, parallel=1, wait=True)


def _llama_index(client: QdrantClient, name: str, corpus: Path, dim: int) -> None:
    """Load a collection as LlamaIndex's stock store does: nodes that have their vectors."""
    _create(client, name, "", dim)
    store = QdrantVectorStore(name, client=client)
    vectors = ReadyModel(dim).document_encoder.vectors.tolist()
    numbered = enumerate(_rows(corpus))
    while rows := list(islice(numbered, NODES)):
        store.add(
            [
                TextNode(
                    id_=_uuid(row["id"]),
                    text=row["text"],
                    metadata=row["metadata"],
                    embedding=vectors[number % len(vectors)],
                )
                for number, row in rows
            ]
        )


WAYS: dict[Way, Load] = {"care": _ingest, "upload_points": _upload_points, "llama-index": _llama_index}


def _create(client: QdrantClient, name: str, vector: str, dim: int) -> None:
    """Create a collection that builds no graph while it is loaded, as ingestion does; it would take our cores."""
    no_graph = models.HnswConfigDiff(m=0)
    params = models.VectorParams(size=dim, distance=models.Distance.COSINE, hnsw_config=no_graph)
    client.create_collection(name, {vector: params} if vector else params)


def _uuid(document_id: str) -> str:
    """Make a point id of a document's, which is a string, as users of Qdrant do."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, document_id))


def _rows(corpus: Path) -> Iterator[dict[str, Any]]:
    with corpus.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _medians(uploads: list[Upload]) -> dict[str, dict[str, float]]:
    """Return the medians by way and figure."""
    figures = ("client_cpu_seconds_per_10k", "server_cpu_seconds_per_10k", "points_per_second")
    return {
        way: {
            figure: round(median(getattr(upload, figure) for upload in uploads if upload.way == way), 3)
            for figure in figures
        }
        for way in WAYS
    }


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
