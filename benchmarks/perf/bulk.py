"""Cost of a bulk job against direct ingestion, and loaders against the stock client, in turns.

With ready vectors for an encoder, or with a pair.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import cast

import click
from qdrant_client import QdrantClient, models

from care_qdrant.bulk.encode import encode_unit, read_part
from care_qdrant.bulk.job import Job, Manifest, Receipt
from care_qdrant.bulk.load import load
from care_qdrant.bulk.units import plan
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Vectors
from tests.reliability.processes import BINARY, QdrantServer
from tests.reliability.ready_model import ReadyModel, write_corpus

from .measured import output_option, save_measured, scratch_option, shown


@dataclass(frozen=True, slots=True)
class Turn:
    """CPU and wall seconds of one turn, of this process; the server's are not in it."""

    direct: tuple[float, float]
    plan: tuple[float, float]
    encode: tuple[float, float]
    load: tuple[float, float]
    upload: tuple[float, float] | None = None
    """Seconds and CPU seconds of the stock client's ``upload_points`` of the parts over gRPC; None without a server."""
    loaders: dict[int, float] = field(default_factory=dict)
    """Seconds that so many loaders take together."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--documents", type=click.IntRange(1), default=20_000, show_default=True, help="Documents, one point each."
)
@click.option("--dim", type=click.IntRange(1), default=1_024, show_default=True, help="Length of the vectors.")
@click.option("--model", help="Pair that encodes, as built-in.  [default: ready vectors, so that the rest shows]")
@click.option(
    "--loaders", "counts", type=click.IntRange(1), multiple=True, help="Also load by so many processes. Repeatable."
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Turns.")
@scratch_option
@output_option
def bulk(
    documents: int,
    dim: int,
    model: str | None,
    counts: tuple[int, ...],
    repeats: int,
    scratch: Path | None,
    output: Path,
) -> None:
    """Compare plan, encode and load with direct ingestion, on a real server (QDRANT_BINARY), or else embedded.

    On a server, loading is also compared with upload_points of the same parts over gRPC.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m benchmarks.perf.bulk --loaders 1 --loaders 2 --loaders 4 \\
        --output benchmarks/results/bulk-load.json
    """
    turns = []
    with tempfile.TemporaryDirectory(dir=scratch) as name, ExitStack() as stack:
        folder = Path(name)
        corpus = write_corpus(folder / "corpus.jsonl", documents, sentences=2)
        pair = ReadyModel(dim) if model is None else CareModel.load(model)
        contract = pair.contract()
        # Units enough that each of several loaders has the same number of them.
        rows = -(-documents // (2 * max(counts, default=1)))
        draft = Manifest("pair", pair.name, contract.fingerprint, contract.dim, "Cosine", pair.name, unit_rows=rows)
        url = None if BINARY is None else stack.enter_context(QdrantServer(BINARY, folder)).url
        path = folder / "qdrant" if url is None else None
        pools = {count: stack.enter_context(_pool(count)) for count in counts}
        with open_client(url=url, path=path, grpc=url is not None) as client:
            for number in range(repeats):
                job = Job(f"{folder}/job-{number}")
                turn = Turn(
                    direct=_timed(lambda: ingest(str(corpus), pair, client, "direct")),
                    plan=_timed(lambda: plan([str(corpus)], job, draft, pair.document_tokenizer, sparse=False)),  # noqa: B023  # called at once
                    encode=_timed(lambda: _encode(job, pair)),  # noqa: B023  # called at once
                    load=_timed(lambda: load(job, Collection(client, "bulk"))),  # noqa: B023  # called at once
                    upload=None if url is None else _timed(lambda: _upload(job, client, "stock")),  # noqa: B023  # called at once
                    loaders={count: _together(pools[count], job, url, count) for count in counts if url is not None},
                )
                turns.append(shown(turn))
                found = {each.name: client.count(each.name).count for each in client.get_collections().collections}
                if len({*found.values()}) > 1:
                    raise click.ClickException(f"the ways do not store the same points: {found}")
                for name in found:
                    client.delete_collection(name)
    added = [sum(getattr(turn, step)[0] for step in ("plan", "encode", "load")) - turn.direct[0] for turn in turns]
    result = {
        "documents": documents,
        "dim": contract.dim,
        "model": model,
        "server": BINARY is not None,
        "added_cpu_share": round(median(extra / turn.direct[0] for extra, turn in zip(added, turns, strict=True)), 4),
        "added_cpu_ms_per_document": round(1e3 * median(added) / documents, 3),
        "load_to_direct_cpu": round(median(turn.load[0] / turn.direct[0] for turn in turns), 3),
        "load_to_direct_seconds": round(median(turn.load[1] / turn.direct[1] for turn in turns), 3),
    }
    uploads = [(turn.load, turn.upload) for turn in turns if turn.upload is not None]
    if uploads:
        result["load_to_upload_cpu"] = round(median(own[0] / stock[0] for own, stock in uploads), 3)
        result["load_to_upload_speed"] = round(median(stock[1] / own[1] for own, stock in uploads), 3)
        result["points_per_second_of_loaders"] = {
            count: round(documents / median(turn.loaders[count] for turn in turns)) for count in counts
        }
    save_measured(output, {**result, "turns": [asdict(turn) for turn in turns]})


def _pool(count: int) -> ProcessPoolExecutor:
    """Return processes that have imported what a loader needs, so that only loading is timed."""
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    list(pool.map(time.sleep, [0.5] * count))
    return pool


def _together(pool: ProcessPoolExecutor, job: Job, url: str, count: int) -> float:
    start = time.perf_counter()
    list(pool.map(_load_share, [job.url] * count, [url] * count, range(1, count + 1), [count] * count))
    return round(time.perf_counter() - start, 3)


def _load_share(job: str, url: str, number: int, of: int) -> None:
    with open_client(url=url, grpc=True) as client:
        load(Job(job), Collection(client, f"loaders-{of}"), part=(number, of))


def _upload(job: Job, client: QdrantClient, name: str) -> None:
    """Load the parts as the stock client does, with the smallest payload; the server builds no graph meanwhile."""
    manifest, receipts = job.manifest(), job.receipts()
    params = models.VectorParams(size=manifest.dim, distance=models.Distance.COSINE)
    client.create_collection(name, {"v": params}, hnsw_config=models.HnswConfigDiff(m=0))
    client.upload_points(name, _points(job, manifest, [*receipts.values()]), batch_size=256, parallel=1, wait=True)


def _points(job: Job, manifest: Manifest, receipts: Sequence[Receipt]) -> Iterator[models.PointStruct]:
    for chunks in (chunks for receipt in receipts for chunks in read_part(job, manifest, receipt)):
        for chunk in chunks:
            payload = {"doc_id": chunk.document.id, "text": chunk.text, **chunk.document.metadata}
            yield models.PointStruct(
                id=chunk.point_id, vector={"v": cast(Vectors, chunk.vector).tolist()}, payload=payload
            )


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return round(time.process_time() - cpu, 3), round(time.perf_counter() - wall, 3)


def _encode(job: Job, model: DocumentModel) -> None:
    manifest = job.manifest()
    for unit in manifest.units:
        encode_unit(job, manifest, unit, model, 16_384)


if __name__ == "__main__":
    bulk()
