"""Lists the slices of a collection into units, in one process or several.

What is listed of a slice is noted in the job as soon as its units are there, so that a plan which was killed goes on
with the slices that are left. The notes stand in a folder that is named after the manifest which the plan began with:
as soon as the plan has written another one, they count no more, whether or not they were removed.
"""

import hashlib
import json
import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from qdrant_client import QdrantClient

from care_qdrant.bulk.job import MANIFEST, Job, Manifest, Unit
from care_qdrant.bulk.units import copied_rows, copy_rows, require_same, row_hash
from care_qdrant.contracts.layouts import Layout
from care_qdrant.errors import QdrantError
from care_qdrant.ingestion.seen import Seen
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.types import Document
from care_qdrant.vectors.points import Characters, PointReader, PointTask, PointWindow

OpenClient = Callable[[], AbstractContextManager[QdrantClient]]

SLICES = 16
"""Largest number of slices: each is found by a walk over all ids, which costs the server a little."""
UNITS_OF_SLICE = 4
"""Units that a slice has at least, since its last one is seldom full."""
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Plan:
    """A plan over a collection, as each process that reads a part of it gets it."""

    url: str
    """The job."""
    draft: Manifest
    layout: Layout
    tokens_per_character: float
    """Tokens of a sample of the texts, over their characters, by which those of a unit are estimated."""

    @cached_property
    def job(self) -> Job:
        """The folder of the job."""
        return Job(self.url)

    @cached_property
    def folder(self) -> str:
        """Folder of the notes, in the job."""
        return f"plan-{hashlib.sha256(self.job.read(MANIFEST) or b'').hexdigest()[:12]}"

    def listed(self) -> dict[tuple[int, int], str]:
        """Return the notes of an interrupted plan: number of the slice and of all slices, to the file."""
        found = {name: re.fullmatch(r"(\d+)-of-(\d+)\.json", name) for name in self.job.files(self.folder)}
        return {(int(match[1]), int(match[2])): f"{self.folder}/{name}" for name, match in found.items() if match}

    def units(self, note: str) -> tuple[Unit, ...]:
        """Return the units of a slice that is listed, which has to be of the same plan."""
        listed = self.job.manifest(note)
        require_same(listed, self.draft, self.url, sparse=False)
        return listed.units

    def list_slice(
        self, place: Collection, number: int, total: int, planned: Seen, on_read: Callable[[int], None]
    ) -> None:
        """Write the units of a slice and then its note."""
        reader = PointReader(self.layout, self.draft.vector_name, self.draft.fingerprint, Characters())
        windows = reader.windows(place, place.slices(total)[number])
        units = [self._write(tasks, key) for key, tasks in _batches(windows, planned, self.draft.unit_rows, on_read)]
        self.job.write_manifest(replace(self.draft, units=tuple(units)), f"{self.folder}/{number}-of-{total}.json")

    def planned(self) -> Seen:
        """Return the texts that the job has from earlier plans."""
        seen = Seen()
        if self.job.read(MANIFEST) is not None:
            for unit in self.job.manifest().units:
                for row in copied_rows(self.job, unit):
                    if isinstance(row, Document):
                        seen.add(_planned(row.id, row.text))
        return seen

    def forget_slices(self) -> None:
        """Remove the notes, after the manifest has their units."""
        self.job.remove(self.folder)

    def _write(self, tasks: Sequence[PointTask], key: object) -> Unit:
        metadata = {} if key is None else {"shard_key": key}
        documents = [Document(json.dumps(t.id), t.text, metadata=metadata, line=n) for n, t in enumerate(tasks, 1)]
        digest = hashlib.sha256()
        for document in documents:
            digest.update(row_hash(document))
        unit = Unit(
            name=f"points-{tasks[0].id}-{digest.hexdigest()[:12]}",
            file="",
            label=self.draft.collection or "",
            first=1,
            last=len(tasks),
            documents=len(tasks),
            tokens=round(self.tokens_per_character * sum(len(task.text) for task in tasks)),
            hash=digest.hexdigest(),
        )
        return copy_rows(self.job, unit, documents)


def list_slices(
    plan: Plan,
    target: Collection,
    points: int,
    workers: int,
    open_client: OpenClient | None,
    on_progress: Callable[[int], None],
) -> list[Unit]:
    """List those slices of a collection that no interrupted plan has listed; return the units of all."""
    listed = plan.listed()
    wanted = max(1, min(SLICES, points // (UNITS_OF_SLICE * plan.draft.unit_rows)))
    total = len(target.slices(max((of for _, of in listed), default=wanted)))
    for note in (listed[slice_] for slice_ in listed if slice_[1] == total):
        plan.units(note)  # of another model or another field: said before the work
    left = [number for number in range(total) if (number, total) not in listed]
    if open_client is None or min(workers, len(left)) < 2:
        _in_this_process(plan, target, left, total, on_progress)
    else:
        _in_processes(plan, target, left, total, workers, open_client, on_progress)
    listed = plan.listed()
    return [unit for number in range(total) for unit in plan.units(listed[number, total])]


def _in_this_process(
    plan: Plan, target: Collection, left: Sequence[int], total: int, on_progress: Callable[[int], None]
) -> None:
    read = 0

    def note(points: int) -> None:
        nonlocal read
        read += points
        on_progress(read)

    with plan.planned() as planned:
        for number in left:
            plan.list_slice(target, number, total, planned, note)


def _in_processes(
    plan: Plan,
    target: Collection,
    left: Sequence[int],
    total: int,
    workers: int,
    open_client: OpenClient,
    on_progress: Callable[[int], None],
) -> None:
    """Let processes list slices: in threads, parsing answers and hashing texts would share one core."""
    context = multiprocessing.get_context("spawn")
    read = context.Value("q", 0)
    given = (plan, target.name, target.policy, open_client, read)
    pool = ProcessPoolExecutor(min(workers, len(left)), context, _start, given)
    running: set[Future[None]] = set()
    try:
        running = {pool.submit(_list_slice, number, total) for number in left}
        while running:
            done, running = wait(running, PROGRESS_SECONDS, FIRST_COMPLETED)
            on_progress(read.value)
            for future in done:
                future.result()
    except BrokenExecutor as error:
        raise QdrantError(
            f"collection {target.name!r}: a process that read it died, perhaps for lack of memory; what is listed "
            "stays: run the same command again, perhaps with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Reader:
    """The state of a process that reads a collection."""

    plan: Plan
    place: Collection
    planned: Seen
    read: Any


_reader: _Reader | None = None
_opened = ExitStack()


def _start(plan: Plan, name: str, policy: RetryPolicy, open_client: OpenClient, read: Any) -> None:
    global _reader
    threading.Thread(target=_end_with_parent, daemon=True).start()
    client = _opened.enter_context(open_client())
    _reader = _Reader(plan, Collection(client, name, policy), _opened.enter_context(plan.planned()), read)


def _end_with_parent() -> None:
    """End this process when its parent was killed: nobody would take what it lists."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _list_slice(number: int, total: int) -> None:
    assert _reader is not None
    counter = _reader.read

    def note(points: int) -> None:
        with counter.get_lock():
            counter.value += points

    _reader.plan.list_slice(_reader.place, number, total, _reader.planned, note)


def _planned(point: str, text: str) -> Document:
    return Document(f"{point} {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}", "")


def _batches(
    windows: Iterator[PointWindow], planned: Seen, size: int, on_read: Callable[[int], None]
) -> Iterator[tuple[object, list[PointTask]]]:
    """Return the texts that no earlier unit has, in lists of one shard key each."""
    for key, group in groupby(windows, key=lambda window: window.place.shard_key):
        waiting: list[PointTask] = []
        for window in group:
            on_read(window.read)
            waiting += [t for t in window.encode if planned.add(_planned(json.dumps(t.id), t.text)) == "new"]
            while len(waiting) >= size:
                yield key, waiting[:size]
                waiting = waiting[size:]
        if waiting:
            yield key, waiting
