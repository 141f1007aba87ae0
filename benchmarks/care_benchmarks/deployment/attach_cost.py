"""What attaching costs beside the encoding: time in which the encoder stands still, and memory."""

import multiprocessing
import resource
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from qdrant_client import QdrantClient, models

from care_benchmarks.ingestion.fake import ReadyModel
from care_qdrant.attach.attach import attach
from care_qdrant.store.connection import open_client

OLD_DIM = 8
BATCH = 1_000
SYNTHETIC_KEY = "synthetic_points"
"""In a collection's metadata: with how many points the stand-in's synthetic engine begins it."""
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class AttachCost:
    """One attach on the stand-in server, in a process of its own."""

    points: int
    covered: int
    """Points that have the vector afterwards, as the server counts them."""
    dim: int
    encoder_points_per_second: float | None
    """Of the encoder, which sleeps as if a GPU worked; None for one that costs nothing."""
    seconds: float
    share_of_pure_encoding: float | None
    """Time of the encoding alone, divided by the time of the whole run."""
    encoder_idle_fraction: float
    peak_memory_mib: float
    """Resident, of the whole process."""


def measure_attach(url: str, points: int, dim: int, rate: float | None = None) -> AttachCost:
    """Make a collection, attach to it in another process, and delete it.

    Args:
        url: Of the stand-in server; its synthetic engine makes the points by itself.
        points: How many.
        dim: Of the vectors that are attached.
        rate: Points that the encoder takes a second; None for all at once.
    """
    name = f"attach-cost-{points}"
    with open_client(url=url) as client:
        _fill(client, name, points)
        here, there = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=_attach, args=(url, name, rate, dim, there))
        process.start()
        there.close()  # so that a process that dies ends the waiting
        covered, seconds, wait_share, peak_memory_mib = here.recv()
        process.join()
        client.delete_collection(name)
    share = None if rate is None else round(points / rate / seconds, 4)
    return AttachCost(points, covered, dim, rate, seconds, share, wait_share, peak_memory_mib)


def _fill(client: QdrantClient, name: str, points: int) -> None:
    old = models.VectorParams(size=OLD_DIM, distance=models.Distance.COSINE)
    client.create_collection(name, vectors_config={"old": old}, metadata={SYNTHETIC_KEY: points})
    if client.count(name).count:
        return
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
        report = attach(client, name, ReadyModel(dim, texts_per_second=rate))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mib = kilobytes / (1024 if sys.platform == "linux" else 1024**2)
    answer.send((report.covered, report.seconds, report.encoder_idle_fraction, round(peak_mib, 1)))
