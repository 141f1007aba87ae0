"""A whole run over a retrieval task of any size: what the harness's own process holds in memory, and what it finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qdrant_client import QdrantClient

from care_benchmarks.contestants import Contestant
from care_benchmarks.ingestion.processes import standin_server
from care_benchmarks.memory import Peak, watched_memory
from care_benchmarks.numbered import numbered_pair, write_task
from care_benchmarks.run import RunSettings, run
from care_benchmarks.search import EMBEDDED_LIMIT
from care_benchmarks.serving import SpeedSettings
from care_benchmarks.speed import LoadPoint
from care_benchmarks.tasks import directory_tasks
from care_qdrant.store.connection import open_client

QUERIES = 100
SAMPLES = 100
Where = Literal["server", "embedded"]


@dataclass(frozen=True, slots=True)
class Scale:
    """One run, in a process of its own."""

    where: Where
    documents: int
    dim: int
    embedded_limit: int
    """Documents beyond which the harness warns in embedded mode."""
    before: Peak
    """Everything imported, the task on the disk, nothing read."""
    after: Peak
    """The task read, checked, encoded, written, counted, searched, scored and reported."""
    indexing_seconds: float
    documents_per_second: float
    ndcg_at_10: float
    """Each query asks for one document, which exact search finds first."""
    speed: LoadPoint


def measure_scale(scratch: Path, where: Where, documents: int, dim: int) -> Scale:
    """Run the harness over a made-up task (`care_benchmarks.numbered`), as `care-bench run` would.

    Args:
        scratch: An empty folder.
        where: A server in a process of its own, which is the tests' stand-in over Qdrant's own engine and searches
            exactly; or the embedded database.
        documents: Of the task.
        dim: Of its vectors.
    """
    tasks = directory_tasks(write_task(scratch / "task", documents, QUERIES))
    pair = numbered_pair(dim)
    contestant = Contestant(pair.name, "vectors drawn from numbers", pair, "", "auto", None, "dense", 0, 0)
    settings = RunSettings(through="core", speed=SpeedSettings((1,), SAMPLES, cold_start=False))
    with _opened(where, scratch / "store") as client, watched_memory() as peak:
        before = Peak(**asdict(peak))
        result = run(
            "scale", [contestant], tasks, client, scratch / "result", settings=settings, command="care-bench scale"
        )
    [system] = result.systems
    [indexing], [score] = system.indexing, system.scores
    assert system.speed is not None  # asked for above
    return Scale(
        where=where,
        documents=documents,
        dim=dim,
        embedded_limit=EMBEDDED_LIMIT,
        before=before,
        after=peak,
        indexing_seconds=indexing.seconds,
        documents_per_second=indexing.encoded / indexing.seconds,
        ndcg_at_10=score.value,
        speed=system.speed.whole[0],
    )


@contextmanager
def _opened(where: Where, store: Path) -> Iterator[QdrantClient]:
    if where == "embedded":
        with open_client(path=store) as client:
            yield client
    else:
        with standin_server("edge", path=store) as url, open_client(url=url) as client:
            yield client
