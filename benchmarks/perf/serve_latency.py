"""Measure what the detour over Qdrant's `inference.address` adds to a query.

    QDRANT_BINARY=/path/to/qdrant python -m benchmarks.perf.serve_latency --output benchmarks/results/serve-latency.json

Starts a Qdrant server whose inference.address is a `care serve`, and writes a sample corpus. Then the same queries go
both ways, in turns: encoded in this process and sent as vectors, and sent as texts.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException

from care_qdrant import CareModel
from care_qdrant.encoders.microbatch import MicroBatcher
from care_qdrant.ingestion.ingest import ingest

from .measured import save_measured

SAMPLE = Path(__file__).parents[2] / "examples" / "sample"
START_SECONDS = 60
COLLECTION = "sample"


def main() -> None:
    """Run and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=400, help="Queries of one round and one way.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="Of care serve.")
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = stack.enter_context(running_service(folder, options.workers))
        url, grpc_port = stack.enter_context(running_qdrant(folder, f"{service}/inference"))
        client = QdrantClient(
            url=url, grpc_port=grpc_port, prefer_grpc=options.grpc, cloud_inference=True, check_compatibility=False
        )
        model = CareModel.load()
        ingest(SAMPLE / "corpus.jsonl", model, client, COLLECTION)
        result = measure(client, model, options.queries, options.rounds)
    save_measured(options.output, {"workers": options.workers, "grpc": options.grpc, **result})


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


@contextmanager
def running_qdrant(folder: Path, inference: str) -> Iterator[tuple[str, int]]:
    """Run a Qdrant server that asks an inference service, and give its address and its gRPC port."""
    http, grpc = free_port(), free_port()
    settings = {
        "QDRANT__SERVICE__HOST": "127.0.0.1",
        "QDRANT__SERVICE__HTTP_PORT": str(http),
        "QDRANT__SERVICE__GRPC_PORT": str(grpc),
        "QDRANT__STORAGE__STORAGE_PATH": str(folder / "storage"),
        "QDRANT__STORAGE__SNAPSHOTS_PATH": str(folder / "snapshots"),
        "QDRANT__TELEMETRY_DISABLED": "true",
        "QDRANT__INFERENCE__ADDRESS": inference,
    }
    binary = os.environ.get("QDRANT_BINARY") or sys.exit("QDRANT_BINARY is not set; it names a qdrant server program")
    with (folder / "qdrant.log").open("wb") as log:
        process = subprocess.Popen([binary], env=os.environ | settings, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{http}"
        until = time.monotonic() + START_SECONDS
        while not answers(f"{url}/readyz"):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit((folder / "qdrant.log").read_text())
            time.sleep(0.1)
        yield url, grpc
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    """Return whether something answers there."""
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
