"""Planning a bulk job over a collection: read at once, and by slices in one thread, in threads and in processes."""

import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import click
from qdrant_client import QdrantClient, models

from care_qdrant.bulk import slices
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.points import plan_points
from care_qdrant.bulk.slices import SLICES, Plan
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from tests.reliability.processes import QdrantServer
from tests.reliability.ready_model import ReadyModel
from tests.tiny import TEXTS

from .measured import output_option, save_measured, scratch_option, shown
from .own_server import cpu_seconds

COLLECTION = "care-perf-slices"
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Planned:
    """One plan of all points."""

    way: str
    workers: int
    seconds: float
    client_cpu_seconds: float
    """CPU time of this process and of those that it started."""
    server_cpu_seconds: float
    units: int
    documents: int


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--binary", type=click.Path(exists=True, dir_okay=False), required=True, help="Server, 1.19 or newer.")
@click.option("--points", type=click.IntRange(1), default=200_000, show_default=True, help="Points of the collection.")
@click.option(
    "--workers",
    "counts",
    type=click.IntRange(1),
    multiple=True,
    default=[1, 2, 4],
    show_default=True,
    help="Processes, and threads; give it once for each.",
)
@click.option("--repeats", type=click.IntRange(1), default=2, show_default=True, help="Turns.")
@scratch_option
@output_option
def bulk_slices(
    binary: str, points: int, counts: Sequence[int], repeats: int, scratch: Path | None, output: Path
) -> None:
    """Plan a job over a collection of short texts on a server of its own, each way in turn.

    \b
    Example:
      python -m benchmarks.perf.bulk_slices --binary ./qdrant --output benchmarks/results/bulk-slices.json
    """
    found: list[Planned] = []
    with tempfile.TemporaryDirectory(dir=scratch) as name, QdrantServer(binary, Path(name)) as server:
        opened = partial(open_client, url=server.url)
        with opened() as client:
            _fill(client, points)
            walk = _walk(server, Collection(client, COLLECTION))
            ways: list[tuple[str, int, Callable[[Collection, Job], Manifest]]] = [("at once", 1, _at_once)]
            ways += [("threads", count, partial(_in_threads, count)) for count in counts if count > 1]
            ways += [("slices", count, partial(_by_slices, count, opened)) for count in counts]
            for turn in range(repeats):
                for number, (way, workers, plan) in enumerate(ways):
                    job = Job(f"{name}/job-{turn}-{number}")
                    mine, theirs, start = _own_cpu(), cpu_seconds(server), time.perf_counter()
                    manifest = plan(Collection(client, COLLECTION).resolve(), job)
                    planned = Planned(
                        way,
                        workers,
                        round(time.perf_counter() - start, 2),
                        round(_own_cpu() - mine, 2),
                        round(cpu_seconds(server) - theirs, 2),
                        len(manifest.units),
                        sum(unit.documents for unit in manifest.units),
                    )
                    found.append(shown(planned))
    result = {"points": points, "slices": SLICES, "walk_ns_per_id": walk, "plans": [asdict(each) for each in found]}
    save_measured(output, result)


def _fill(client: QdrantClient, points: int) -> None:
    draw = random.Random(0)
    params = models.VectorParams(size=4, distance=models.Distance.COSINE, hnsw_config=models.HnswConfigDiff(m=0))
    client.create_collection(COLLECTION, params)
    for start in range(0, points, PAGE):
        numbers = range(start, min(start + PAGE, points))
        texts = ["".join(draw.choices(TEXTS, k=4)) + str(number) for number in numbers]
        batch = [
            models.PointStruct(id=number, vector=[1.0, 0, 0, 0], payload={"text": text})
            for number, text in zip(numbers, texts, strict=True)
        ]
        client.upsert(COLLECTION, batch)
    Collection(client, COLLECTION).wait_for_optimizer(600)


def _walk(server: QdrantServer, collection: Collection) -> float:
    """Return what it costs the server to pass over an id that is in another slice."""
    total = 1 << 20
    spent, points = cpu_seconds(server), collection.count()
    where = models.Filter(must=[models.SliceCondition(slice=models.Slice(total=total, index=0))])
    turns = 20
    for _ in range(turns):
        list(collection.scroll(where=where, payload=False))
    return round((cpu_seconds(server) - spent) / turns / points * 1e9, 1)


def _draft() -> Manifest:
    contract = ReadyModel(32).contract()
    return Manifest("ready", contract.model, contract.fingerprint, contract.dim, "Cosine", contract.model)


def _by_slices(workers: int, opened: slices.OpenClient, target: Collection, job: Job) -> Manifest:
    counter = ReadyModel(32).document_tokenizer
    return plan_points(target, job, _draft(), counter, workers=workers, open_client=opened)


def _at_once(target: Collection, job: Job) -> Manifest:
    with patch.object(slices, "SLICES", 1):
        return plan_points(target, job, _draft(), ReadyModel(32).document_tokenizer)


def _in_threads(workers: int, target: Collection, job: Job) -> Manifest:
    def in_threads(plan: Plan, place: Collection, left: Sequence[int], total: int, _: object) -> None:
        def one(number: int) -> None:
            with plan.planned() as planned:
                plan.list_slice(place, number, total, planned, lambda _: None)

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(one, left))

    with patch.object(slices, "_in_this_process", in_threads):
        return plan_points(target, job, _draft(), ReadyModel(32).document_tokenizer)


def _own_cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    bulk_slices()
