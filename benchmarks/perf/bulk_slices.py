"""Commands that read a whole collection: ``care bulk plan``, by slices and at once, verify and learn."""

import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import click
from care_trainer.learn.reading import sample_ids
from qdrant_client import models

from care_qdrant.bulk import slices
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.points import plan_points
from care_qdrant.contracts.payload import chunk_payload, content_hash
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Chunk, Document, point_id
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifySettings
from tests.reliability.processes import QdrantServer
from tests.reliability.ready_model import SENTENCES, ReadyModel

from .measured import output_option, save_measured, scratch_option, shown
from .own_server import cpu_seconds

COLLECTION = "care-perf-slices"
PAGE = 1_000
SAMPLE = 10_000
"""Ids that learning draws."""
MODEL, OTHER = ReadyModel(4), ReadyModel(8)
"""The model that made the vectors, and one whose vector is planned."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of all points."""

    command: str
    seconds: float
    client_cpu_seconds: float
    server_cpu_seconds: float
    found: int
    """Points, or ids of the sample."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--binary",
    envvar="QDRANT_BINARY",
    type=click.Path(exists=True, dir_okay=False),
    required=True,
    help="Server, 1.19 or newer.",
)
@click.option("--points", type=click.IntRange(1), default=200_000, show_default=True, help="Points of the collection.")
@click.option("--repeats", type=click.IntRange(1), default=2, show_default=True, help="Turns.")
@scratch_option
@output_option
def bulk_slices(binary: str, points: int, repeats: int, scratch: Path | None, output: Path) -> None:
    """Read a collection with the payloads of ingestion on a server of its own, each way in turn.

    What a plan copies is copied each time anew. Verification encodes no sample. Beside other work, the CPU times count.

    \b
    Example:
      python -m benchmarks.perf.bulk_slices --binary ./qdrant --output benchmarks/results/bulk-slices.json
    """
    found: list[Reading] = []
    with (
        tempfile.TemporaryDirectory(dir=scratch) as name,
        QdrantServer(binary, Path(name)) as server,
        open_client(url=server.url) as client,
    ):
        _fill(Collection(client, COLLECTION), points)
        walk = _walk(server, Collection(client, COLLECTION))
        for turn in range(repeats):
            ways: list[tuple[str, Callable[[Collection], int]]] = [("plan, at once", _at_once(name, turn))]
            ways += [("plan", partial(_plan, Job(f"{name}/job-{turn}"))), ("verify", _verify), ("learn", _learn)]
            for command, read in ways:
                place = Collection(client, COLLECTION).resolve()
                mine, theirs, start = _own_cpu(), cpu_seconds(server), time.perf_counter()
                count = read(place)
                reading = Reading(
                    command,
                    round(time.perf_counter() - start, 2),
                    round(_own_cpu() - mine, 2),
                    round(cpu_seconds(server) - theirs, 2),
                    count,
                )
                found.append(shown(reading))
                _save(output, points, walk, found)


def _save(output: Path, points: int, walk: float, found: Sequence[Reading]) -> None:
    summary = {"points": points, "most_slices": slices.MOST_SLICES}
    save_measured(output, {**summary, "walk_ns_per_id": walk, "readings": [asdict(each) for each in found]})


def _fill(collection: Collection, points: int) -> None:
    """Write points as ingestion does: a node beside the text, and the hash of what the vector was made of."""
    draw, contract = random.Random(0), MODEL.contract()
    params = models.VectorParams(size=contract.dim, distance=models.Distance.COSINE)
    collection.create(vectors_config={contract.model: params}, hnsw_config=models.HnswConfigDiff(m=0))
    collection.write_contract(contract.model, contract)
    for start in range(0, points, PAGE):
        batch = []
        for number in range(start, min(start + PAGE, points)):
            text = f"第{number}条：" + "".join(draw.choices(SENTENCES, k=3))
            document = Document(f"doc-{number}", text, metadata={"number": number})
            payload = chunk_payload(Chunk(document, text), {contract.model: content_hash(contract.constants, "", text)})
            vector = {contract.model: [1.0, 0.0, 0.0, 0.0]}
            batch.append(models.PointStruct(id=point_id(document.id, 0), vector=vector, payload=payload))
        collection.upsert(batch)
    collection.wait_for_optimizer(600)


def _walk(server: QdrantServer, collection: Collection) -> float:
    """Return what it costs the server to pass over an id that is in another slice."""
    spent, points = cpu_seconds(server), collection.count()
    where = models.Filter(must=[models.SliceCondition(slice=models.Slice(total=1 << 20, index=0))])
    turns = 20
    for _ in range(turns):
        list(collection.scroll(where=where, payload=False))
    return round((cpu_seconds(server) - spent) / turns / points * 1e9, 1)


def _plan(job: Job, place: Collection) -> int:
    contract = OTHER.contract()
    draft = Manifest("ready", contract.model, contract.fingerprint, contract.dim, "Cosine", "other")
    manifest = plan_points(place, job, draft, OTHER.document_tokenizer)
    return sum(unit.documents for unit in manifest.units)


def _at_once(folder: str, turn: int) -> Callable[[Collection], int]:
    """Return the plan of a server that knows no slices."""

    def plan(place: Collection) -> int:
        with patch.object(slices, "MOST_SLICES", 1):
            return _plan(Job(f"{folder}/job-{turn}-at-once"), place)

    return plan


def _verify(place: Collection) -> int:
    return verify_collection(place, MODEL, settings=VerifySettings(sample=0)).covered  # type: ignore[arg-type]


def _learn(place: Collection) -> int:
    return len(sample_ids(place, SAMPLE, seed=0))


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    bulk_slices()
