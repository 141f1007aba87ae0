"""Measure what the detour over Qdrant's `inference.address` adds to a query."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException

from care_qdrant import CareModel
from care_qdrant.encoders.microbatch import MicroBatcher
from care_qdrant.ingestion.ingest import ingest
from tests.reliability.processes import QdrantServer

from .measured import output_option, save_measured

SAMPLE = Path(__file__).parents[2] / "examples" / "sample"
START_SECONDS = 60
COLLECTION = "sample"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--binary", envvar="QDRANT_BINARY", required=True, help="Server program, which is started on loopback.")
@click.option("--queries", type=click.IntRange(1), default=400, show_default=True, help="Of one round and one way.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds of both ways, in turns.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes of care serve.")
@click.option("--grpc", is_flag=True, help="Search over gRPC.  [default: over HTTP]")
@output_option
def main(binary: str, queries: int, rounds: int, workers: int, grpc: bool, output: Path) -> None:
    """Search the sample by vector and by text, on a Qdrant server whose inference.address is a care serve.

    The same queries go both ways, in turns: encoded in this process and sent as vectors, and sent as texts.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m benchmarks.perf.serve_latency --output benchmarks/results/serve-latency.json
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = stack.enter_context(running_service(folder, workers))
        server = stack.enter_context(inferring_qdrant(binary, folder, service))
        client = QdrantClient(
            url=server.url,
            grpc_port=server.grpc_port,
            prefer_grpc=grpc,
            cloud_inference=True,
            check_compatibility=False,
        )
        model = CareModel.load()
        ingest(SAMPLE / "corpus.jsonl", model, client, COLLECTION)
        result = measure(client, model, queries, rounds)
    save_measured(output, {"workers": workers, "grpc": grpc, **result})


def inferring_qdrant(binary: str, folder: Path, service: str) -> QdrantServer:
    """Return a Qdrant server that asks a service for the vectors of texts."""
    return QdrantServer(binary, folder, {"QDRANT__INFERENCE__ADDRESS": f"{service}/inference"})


def measure(client: QdrantClient, model: CareModel, queries: int, rounds: int) -> dict[str, Any]:
    """Return the latencies of both ways, in milliseconds, for several numbers of clients."""
    lines = (SAMPLE / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    batcher = MicroBatcher(model.query_encoder.encode)
    lost: list[ResponseHandlingException] = []

    def asked(query: list[float] | models.Document) -> list[float]:
        try:
            return scores(client.query_points(COLLECTION, query, using=model.name, limit=10))
        except ResponseHandlingException as error:  # under many threads one can break: seen with httpx
            lost.append(error)
            return scores(client.query_points(COLLECTION, query, using=model.name, limit=10))

    def by_vector(text: str) -> list[float]:
        return asked(batcher.encode(text).tolist())

    def by_text(text: str) -> list[float]:
        return asked(models.Document(text=text, model=model.name))

    differences = [float(np.abs(np.subtract(by_vector(text), by_text(text))).max()) for text in texts]
    result: dict[str, Any] = {"largest_difference_of_scores": max(differences), "queries": queries, "rounds": rounds}
    for clients in (1, 8, 32):
        times: dict[str, list[float]] = {"vector": [], "text": []}
        seconds = dict.fromkeys(times, 0.0)
        for _ in range(rounds):
            for way, ask in (("vector", by_vector), ("text", by_text)):
                started = time.perf_counter()
                times[way] += timed(ask, texts, queries, clients)
                seconds[way] += time.perf_counter() - started
        result[f"clients_{clients}"] = {
            way: {
                "p50_ms": round(float(np.percentile(found, 50)) * 1000, 2),
                "p99_ms": round(float(np.percentile(found, 99)) * 1000, 2),
                "queries_per_second": round(len(found) / seconds[way], 1),
            }
            for way, found in times.items()
        }
    batcher.close()
    return {**result, "asked_again": len(lost)}


def timed(ask: Callable[[str], Any], texts: list[str], queries: int, clients: int) -> list[float]:
    """Return the seconds of each query, asked by so many threads without a pause."""

    def one(number: int) -> float:
        started = time.perf_counter()
        ask(texts[number % len(texts)])
        return time.perf_counter() - started

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(one, range(queries)))


def scores(answer: models.QueryResponse) -> list[float]:
    """Return the scores of an answer."""
    return [point.score for point in answer.points]


@contextmanager
def running_service(folder: Path, workers: int) -> Iterator[str]:
    """Run care serve and give its address."""
    log = folder / "serve.log"
    command = [sys.executable, "-c", "from care_qdrant.cli import main; main()", "serve", "--port", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.DEVNULL, stderr=errors)
    try:
        until = time.monotonic() + START_SECONDS
        while not (found := re.search(r"serving on (\S+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
