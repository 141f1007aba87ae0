"""Lists the slices of a collection into units.

A slice is a part of the points that depends on their ids alone: slices are disjoint and never change. One is recorded
in the job as soon as its units are written, so that a killed plan continues with the remaining ones. The records are in
a folder named after the manifest with which the plan began: as soon as the plan has written another manifest, they no
longer count, whether or not they were removed.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from qdrant_client import models

from care_qdrant.bulk.job import MANIFEST, Job, Manifest, Unit
from care_qdrant.bulk.units import hash_rows, read_unit, require_same, write_unit
from care_qdrant.contracts.layouts import Layout
from care_qdrant.ingestion.seen import Seen
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document
from care_qdrant.vectors.points import Characters, PointReader, PointTask, PointWindow

MOST_SLICES = 16
"""Largest number of slices: each is found by a walk over all ids, which costs the server a little."""
UNITS_OF_SLICE = 4
"""Least number of units in a slice, since its last one is seldom full."""


@dataclass(frozen=True)
class Plan:
    """A plan over a collection."""

    job: Job
    draft: Manifest
    layout: Layout
    tokens_per_character: float
    """Tokens per character in a sample of the texts, to estimate the tokens of a unit."""

    @cached_property
    def folder(self) -> str:
        """Folder of the notes, in the job."""
        return f"plan-{hashlib.sha256(self.job.read(MANIFEST) or b'').hexdigest()[:12]}"

    def listed(self) -> dict[tuple[int, int], str]:
        """Return the notes of an interrupted plan: number of the slice and of all slices, to the file."""
        matches = {name: re.fullmatch(r"(\d+)-of-(\d+)\.json", name) for name in self.job.files(self.folder)}
        return {(int(match[1]), int(match[2])): f"{self.folder}/{name}" for name, match in matches.items() if match}

    def units(self, note: str) -> tuple[Unit, ...]:
        """Return the units of a listed slice; refuse one of another plan."""
        listed = self.job.manifest(note)
        require_same(listed, self.draft, self.job.url, sparse=False)
        return listed.units

    def list_slice(
        self,
        planned: Seen,
        place: Collection,
        key: tuple[int, int],
        where: models.Filter | None,
        on_read: Callable[[int], None],
    ) -> None:
        """Write the units of a slice, which ``where`` passes, and then its note under its key of `listed`."""
        reader = PointReader(self.layout, self.draft.vector_name, self.draft.fingerprint, Characters())
        windows = reader.windows(place, where)
        units = [self._write(tasks, part) for part, tasks in _batches(windows, planned, self.draft.unit_rows, on_read)]
        number, total = key
        self.job.write_manifest(replace(self.draft, units=tuple(units)), f"{self.folder}/{number}-of-{total}.json")

    def planned(self) -> Seen:
        """Return the record of the texts that the job has from earlier plans."""
        seen = Seen()
        if self.job.read(MANIFEST) is not None:
            for unit in self.job.manifest().units:
                for row in read_unit(self.job, unit):
                    if isinstance(row, Document):
                        seen.add(_planned(row.id, row.text))
        return seen

    def forget_slices(self) -> None:
        """Remove the notes, after the manifest has their units."""
        self.job.remove(self.folder)

    def _write(self, tasks: Sequence[PointTask], key: object) -> Unit:
        metadata = {} if key is None else {"shard_key": key}
        documents = [Document(json.dumps(t.id), t.text, metadata=metadata, line=n) for n, t in enumerate(tasks, 1)]
        content = hash_rows(documents)
        unit = Unit(
            name=f"points-{tasks[0].id}-{content[:12]}",
            label=self.draft.collection or "",
            first=1,
            last=len(tasks),
            documents=len(tasks),
            rejected=0,
            tokens=round(self.tokens_per_character * sum(len(task.text) for task in tasks)),
            hash=content,
        )
        write_unit(self.job, unit, documents)
        return unit


def list_slices(plan: Plan, target: Collection, points: int, on_progress: Callable[[int], None]) -> list[Unit]:
    """List the slices of a collection that no interrupted plan has listed; return the units of all slices."""
    listed, read = plan.listed(), 0
    total = max((of for _, of in listed), default=points // (UNITS_OF_SLICE * plan.draft.unit_rows))
    filters = target.slices(max(1, min(MOST_SLICES, total)))
    slices = {(number, len(filters)): where for number, where in enumerate(filters)}
    for key in slices.keys() & listed.keys():
        plan.units(listed[key])  # refuses another model or another field before the work

    def note(points: int) -> None:
        nonlocal read
        read += points
        on_progress(read)

    with plan.planned() as planned:
        for key, where in slices.items():
            if key not in listed:
                plan.list_slice(planned, target, key, where, note)
    listed = plan.listed()
    return [unit for key in slices for unit in plan.units(listed[key])]


def _planned(point: str, text: str) -> Document:
    return Document(f"{point} {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}", "")


def _batches(
    windows: Iterator[PointWindow], planned: Seen, size: int, on_read: Callable[[int], None]
) -> Iterator[tuple[object, list[PointTask]]]:
    """Yield the texts that no earlier unit has, in lists of one shard key each."""
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
