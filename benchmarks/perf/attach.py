"""Cost of attaching beside the encoding: idle time of the encoder, and memory."""

import multiprocessing
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import click
from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from tests.reliability.ready_model import ReadyModel

from .measured import output_option, plain, save_measured, shown

OLD_DIM = 8
BATCH = 1_000
_SPAWN = multiprocessing.get_context("spawn")

url_option = click.option("--url", envvar="QDRANT_URL", show_envvar=True, required=True, help="URL of a Qdrant server.")


@dataclass(frozen=True, slots=True)
class AttachCost:
    """One attach, in a process of its own."""

    points: int
    covered: int
    """Points that have the vector afterwards, as the server counts them."""
    dim: int
    encoder_points_per_second: float | None
    """Speed of the encoder, which sleeps as while a GPU works; None for one that costs nothing."""
    seconds: float
    share_of_pure_encoding: float | None
    """Time of the encoding alone, divided by the time of the whole run."""
    encoder_idle_fraction: float
    peak_memory_mib: float
    """Peak resident memory of the whole process."""


@click.group(name="attach", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Measure attach.

    \b
    Example:
      python -m benchmarks.perf.attach speed --output benchmarks/results/deployment-attach-speed.json
    """


@group.command()
@click.option(
    "--points",
    type=click.IntRange(1),
    multiple=True,
    default=(5_000, 20_000),
    show_default=True,
    help="Sizes to measure; repeatable.",
)
@click.option("--rate", type=click.FloatRange(1), default=300, show_default=True, help="Points per second encoded.")
@click.option("--dim", type=click.IntRange(1), default=256, show_default=True, help="Length of the vectors.")
@url_option
@output_option
def speed(points: Sequence[int], rate: float, dim: int, url: str, output: Path) -> None:
    """Compare the time of an attach on a server with that of the encoding alone.

    \b
    Example:
      python -m benchmarks.perf.attach speed --output benchmarks/results/deployment-attach-speed.json
    """
    results = [shown(measure_attach(url, number, dim, rate)) for number in points]
    save_measured(output, {"results": plain(results)})


@group.command()
@click.option(
    "--points",
    type=click.IntRange(1),
    multiple=True,
    default=(50_000, 1_000_000),
    show_default=True,
    help="Sizes to measure; repeatable.",
)
@click.option("--dim", type=click.IntRange(1), default=8, show_default=True, help="Length of the vectors.")
@url_option
@output_option
def memory(points: Sequence[int], dim: int, url: str, output: Path) -> None:
    """Compare the peak memory of attaching to a small and to a large collection on a server.

    \b
    Example:
      python -m benchmarks.perf.attach memory --output benchmarks/results/deployment-memory.json
    """
    results = [shown(measure_attach(url, number, dim)) for number in sorted(points)]
    growth = round(results[-1].peak_memory_mib - results[0].peak_memory_mib, 1)
    save_measured(output, {"growth_mib": growth, "results": plain(results)})


def measure_attach(url: str, points: int, dim: int, rate: float | None = None) -> AttachCost:
    """Create a collection, attach to it in another process, and delete it."""
    name = f"attach-cost-{points}"
    with open_client(url=url) as client:
        _fill(client, name, points)
        here, there = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=_attach, args=(url, name, rate, dim, there))
        process.start()
        there.close()  # so that a process that dies ends the waiting
        covered, seconds, idle_fraction, peak_memory_mib = here.recv()
        process.join()
        client.delete_collection(name)
    share = None if rate is None else round(points / rate / seconds, 4)
    return AttachCost(points, covered, dim, rate, seconds, share, idle_fraction, peak_memory_mib)


def _fill(client: QdrantClient, name: str, points: int) -> None:
    old = models.VectorParams(size=OLD_DIM, distance=models.Distance.COSINE)
    client.create_collection(name, vectors_config={"old": old})
    for start in range(0, points, BATCH):
        rows = [
            models.PointStruct(
                id=n, vector={"old": [1.0] * OLD_DIM}, payload={"text": f"第{n}条：高血压患者应当限制食盐。"}
            )
            for n in range(start, min(start + BATCH, points))
        ]
        client.upsert(name, rows, wait=True)


def _attach(
    url: str, name: str, rate: float | None, dim: int, answer: "Connection[tuple[int, float, float, float], None]"
) -> None:
    with open_client(url=url) as client:
        report = attach_vector(client, name, ReadyModel(dim, texts_per_second=rate))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mib = kilobytes / (1024 if sys.platform == "linux" else 1024**2)
    answer.send((report.covered, report.seconds, report.encoder_idle_fraction, round(peak_mib, 1)))


if __name__ == "__main__":
    group()
