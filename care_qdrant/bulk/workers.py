"""Distributes units to workers and collects receipts: the encoder of this process, or actors of Ray.

A worker holds one encoder and runs one unit at a time. Ray replaces a worker that died, and gives its unit to the new
one. A unit that failed is reported; the next run of the command encodes it. Vectors never come here: workers write
their parts themselves.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from care_qdrant.bulk.job import Job, Manifest, Receipt, Unit
from care_qdrant.encoders.engine import LOCAL, Engine
from care_qdrant.errors import CareError, needs_extra, require_counts
from care_qdrant.ingestion.settings import Shard

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Number of Ray workers to which a unit is given if one after the other dies."""
_COUNTED = ("documents", "chunks", "rejected", "tokens")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The model, the engine and the job of every worker."""

    job: str
    model: str
    device: str | None = None
    batch_tokens: int = 16_384
    engine: Engine = LOCAL

    def __post_init__(self) -> None:
        require_counts(batch_tokens=self.batch_tokens)


@dataclass(slots=True)
class Outcome:
    """Result of a run over units: receipts, and the reasons of failures."""

    receipts: list[Receipt] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons why units have no part, by the name of the unit."""


Submit = Callable[[Unit], "Future[Receipt]"]
"""Function that makes one worker encode a unit."""


def run_units(units: Sequence[Unit], workers: Sequence[Submit], on_receipt: Callable[[Receipt], None]) -> Outcome:
    """Run all units; the failure of one does not stop the others."""
    outcome = Outcome()
    waiting, free = deque(units), deque(workers)
    running: dict[Future[Receipt], tuple[Unit, Submit]] = {}
    while waiting or running:
        while waiting and free:
            unit, submit = waiting.popleft(), free.popleft()
            running[submit(unit)] = unit, submit
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            unit, submit = running.pop(future)
            free.append(submit)
            try:
                receipt = future.result()
            except Exception as raised:
                error = getattr(raised, "cause", None) or raised  # Ray's own says the traceback of the actor
                reason = str(error) if isinstance(error, CareError) else f"{type(error).__name__}: {error}".strip(": ")
                logger.error("unit %s failed: %s", unit.name, reason)
                outcome.failed[unit.name] = reason
            else:
                outcome.receipts.append(receipt)
                on_receipt(receipt)
    return outcome


@contextmanager
def ray_workers(count: int | None, settings: WorkerSettings) -> Iterator[list[Submit]]:
    """Open actors on the Ray cluster of ``RAY_ADDRESS``: by default one per GPU, or per two cores without GPUs."""
    with needs_extra("ray", "--runner ray"):
        import ray
    mine = not ray.is_initialized()
    if mine:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        has: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus = int(has.get("GPU", 0))
        count = count or gpus or max(1, int(has.get("CPU", 1)) // 2)
        needs = {"num_gpus": 1} if gpus >= count else {"num_cpus": max(1, int(has.get("CPU", 1)) // count)}
        remote: Any = ray.remote  # whose types know no options by name
        actor = remote(**needs, max_restarts=-1, max_task_retries=ATTEMPTS - 1)(_Encoder)
        yield [_submitting_to(actor.remote(settings)) for _ in range(count)]
    finally:
        if mine:
            ray.shutdown()


def _submitting_to(actor: Any) -> Submit:
    return lambda unit: actor.run.remote(unit).future()


def _worker_here(settings: WorkerSettings) -> Submit:
    """Return the encoder of this process; a unit is encoded while it is submitted."""
    encoder = _Encoder(settings)

    def submit(unit: Unit) -> "Future[Receipt]":
        future: Future[Receipt] = Future()
        try:
            future.set_result(encoder.run(unit))
        except Exception as error:
            future.set_exception(error)
        return future

    return submit


class _Encoder:
    """The state of a worker: the job and the model, opened once."""

    def __init__(self, settings: WorkerSettings) -> None:
        from care_qdrant.model.care_model import CareModel

        self._settings, self._job = settings, Job(settings.job)
        self._manifest: Manifest = self._job.manifest()
        self._model = CareModel.load(settings.model, device=settings.device, engine=settings.engine)
        self._model.require_documents()

    def run(self, unit: Unit) -> Receipt:
        """Encode a unit."""
        from care_qdrant.bulk.encode import encode_unit

        return encode_unit(self._job, self._manifest, unit, self._model, self._settings.batch_tokens)


@dataclass(frozen=True, slots=True)
class EncodeReport:
    """Report of a run of ``care bulk encode``."""

    units: int
    """Units of this run's share of the job."""
    encoded: int
    """Units whose part this run wrote."""
    skipped: int
    """Units that already had a part."""
    documents: int
    chunks: int
    rejected: int
    tokens: int
    seconds: float
    tokens_per_second: float
    failed: dict[str, str]


def encode_units(
    job: Job,
    manifest: Manifest,
    settings: WorkerSettings,
    *,
    shard: tuple[int, int] = (1, 1),
    runner: str = "local",
    workers: int | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> EncodeReport:
    """Encode the units that have no part yet; progress counts the tokens of this share."""
    require_counts(workers=workers)
    share = Shard(*shard).of_parts(manifest.units)
    done = job.receipts()
    todo = [unit for unit in share if unit.name not in done]
    start = time.perf_counter()
    sizes = {unit.name: unit.tokens for unit in share}
    finished = done.keys() & sizes.keys()
    on_progress(sum(sizes[name] for name in finished), sum(sizes.values()))

    def note(receipt: Receipt) -> None:
        logger.info(
            "unit %s: %d chunks, %d tokens, %.1f s", receipt.unit, receipt.chunks, receipt.tokens, receipt.seconds
        )
        finished.add(receipt.unit)
        on_progress(sum(sizes[name] for name in finished), sum(sizes.values()))

    outcome = Outcome()
    if todo:
        if runner == "ray":
            with ray_workers(workers, settings) as actors:
                outcome = run_units(todo, actors, note)
        else:
            outcome = run_units(todo, [_worker_here(settings)], note)
    seconds = time.perf_counter() - start
    counts = {name: sum(getattr(receipt, name) for receipt in outcome.receipts) for name in _COUNTED}
    return EncodeReport(
        units=len(share),
        encoded=len(outcome.receipts),
        skipped=len(share) - len(todo),
        **counts,
        seconds=round(seconds, 3),
        tokens_per_second=round(counts["tokens"] / seconds, 1),
        failed=outcome.failed,
    )
