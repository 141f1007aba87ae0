"""Time and memory of the dynamic index filter on a Qdrant server, and how often its graph decides otherwise."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from care_benchmarks.machine import describe_machine
from care_data.diversify import QdrantIndex
from care_trainer.data.diversity import BATCH_ROWS, Neighbourhood

from care_qdrant import Collection, Vectors, open_client
from tests.reliability.processes import QdrantServer

from .measured import output_option, save_measured, shown


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the filter."""

    texts: int
    kept: int
    seconds: float
    client_mib: float
    """Resident memory of this process, beyond what it had before the first text."""
    server_mib: float
    """Resident memory of the server, mapped files included."""


def vectors(texts: int, dim: int, seed: int) -> Iterator[Vectors]:
    """Yield batches of unit vectors; half of the texts are near another one."""
    draw = np.random.default_rng(seed)
    for start in range(0, texts, BATCH_ROWS):
        size = min(BATCH_ROWS, texts - start)
        # A centre is drawn anew from its number each time, so that only the filter holds memory.
        chosen = (np.random.default_rng([seed, each]) for each in draw.integers(0, texts // 2, size))
        centres = np.stack([each.standard_normal(dim, dtype=np.float32) for each in chosen])
        rows = centres + 0.4 * draw.standard_normal((size, dim), dtype=np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure(server: QdrantServer, texts: int, dim: int, threshold: float, seed: int, every: int) -> Iterator[Progress]:
    """Filter generated vectors, and yield time and memory after each part."""
    began, count, before = time.perf_counter(), 0, _resident_mib()
    with open_client(url=server.url) as client:
        collection = Collection(client, "diversify")
        QdrantIndex.create(collection, dim)
        index = QdrantIndex(collection, k=5)
        rule = Neighbourhood(threshold, 1, index)
        for batch in vectors(texts, dim, seed):
            rule.decide(batch)
            count += len(batch)
            if count % every < BATCH_ROWS or count == texts:
                seconds = round(time.perf_counter() - began, 1)
                own = _resident_mib() - before
                yield shown(Progress(count, index.kept, seconds, round(own), round(_resident_mib(server.pid))))
        collection.drop()


def _resident_mib(process: int | None = None) -> float:
    return float(psutil.Process(process).memory_info().rss / 2**20)


def disagreements(server: QdrantServer, texts: int, dim: int, threshold: float, seed: int) -> dict[str, int]:
    """Count the texts on which the graph of the server, and its exact search, decide otherwise than a scan."""
    expected, wrong = list[bool](), {"graph": list[bool](), "exact": list[bool]()}
    scan = Neighbourhood(threshold, 1)
    for batch in vectors(texts, dim, seed):
        expected += scan.decide(batch)
    with open_client(url=server.url) as client:
        for name, verdicts in wrong.items():
            collection = Collection(client, f"diversify-{name}")
            QdrantIndex.create(collection, dim)
            rule = Neighbourhood(threshold, 1, QdrantIndex(collection, k=5, exact=name == "exact"))
            for batch in vectors(texts, dim, seed):
                verdicts += rule.decide(batch)
            collection.drop()
    return {name: sum(a != b for a, b in zip(verdicts, expected, strict=True)) for name, verdicts in wrong.items()}


@click.command()
@click.option("--binary", envvar="QDRANT_BINARY", required=True, help="Program of the Qdrant server.")
@click.option("--texts", type=click.IntRange(BATCH_ROWS), default=1_000_000, show_default=True, help="Texts to filter.")
@click.option(
    "--compared", type=click.IntRange(0), default=20_000, show_default=True, help="Texts compared with a scan."
)
@click.option("--dim", type=click.IntRange(2), default=256, show_default=True, help="Length of the vectors.")
@click.option("--threshold", type=float, default=0.8, show_default=True, help="Cosine of similar texts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the vectors.")
@output_option
def main(binary: str, texts: int, compared: int, dim: int, threshold: float, seed: int, output: Path) -> None:
    """Filter generated vectors by the paper's rule on a server of its own.

    \b
    Example:
      python -m benchmarks.perf.diversify --binary qdrant --output benchmarks/results/diversify.json
    """
    settings = {"texts": texts, "dim": dim, "threshold": threshold, "k": 5, "neighbours": 1, "seed": seed}
    with tempfile.TemporaryDirectory() as folder, QdrantServer(binary, Path(folder)) as server:
        describe_machine()  # imports torch, which would be taken for the filter's memory
        other = shown(disagreements(server, compared, dim, threshold, seed)) if compared else {}
        result: dict[str, Any] = {**settings, "compared": compared, "decided_otherwise": other, "progress": []}
        for progress in measure(server, texts, dim, threshold, seed, every=max(BATCH_ROWS, texts // 20)):
            result["progress"].append(asdict(progress))
            save_measured(output, result)


if __name__ == "__main__":
    main()
