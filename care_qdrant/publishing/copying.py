"""Copies the points of a collection into another one: whole, with their ids, resumable at any moment.

A point is read from both sides and written only where they differ, so that a run which was killed is finished by
running it again, and a run over a finished copy is a full comparison of it.
"""

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from qdrant_client import models

from care_qdrant.errors import InputError, NotVerified
from care_qdrant.store.limits import read_limits
from care_qdrant.store.point_equality import Measure, measures, same_point, vectors_of, without_vector
from care_qdrant.store.points import PointId, count_points, in_pages, read_ids, read_points
from care_qdrant.store.retry import Collection
from care_qdrant.store.sender import MAX_BYTES, Insert, Sender, Write

OnProgress = Callable[[int, int], None]
"""Is told how many points are dealt with, and how many there are."""

_BYTES_PER_NUMBER = 21
_BYTES_PER_PAYLOAD = 4_000
"""A guess; the sender halves a request that the server finds too large."""


@dataclass(frozen=True, slots=True)
class CopySettings:
    """How to copy."""

    overwrite: bool = False
    """Replace points that are there with other content; without it, the first one stops the copy."""
    dry_run: bool = False
    """Compare, and write nothing."""
    sample: int = 1_000
    """Points that are read back and compared afterwards."""
    beside: str | None = None
    """A vector that only the target has; it and the hash of its text are no difference."""


@dataclass(slots=True)
class Copied:
    """What a copy did. Points are added, changed or unchanged."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    sample: list[PointId] = field(default_factory=list)
    """Ids drawn evenly from all points of the source."""

    @property
    def points(self) -> int:
        """All that were read from the source."""
        return self.added + self.changed + self.unchanged


def copy_points(
    source: Collection,
    target: Collection,
    vectors: Mapping[str, models.VectorParams],
    settings: CopySettings,
    *,
    is_new: bool,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Copied:
    """Make the target hold every point of the source.

    Args:
        source: To read from.
        target: A collection with the same schema; in a dry run it need not be there.
        vectors: The dense vectors of the target.
        settings: How.
        is_new: The target is empty or not there, so nothing needs to be compared.
        on_progress: Called after each request.

    Raises:
        InputError: a point of the target differs, and ``overwrite`` is off.
        QdrantError: a side refused or could not be reached; what was stored stays.
    """
    sample = Sample(settings.sample)
    copy = _Copy(source, target, measures(vectors), settings, is_new, count_points(source), on_progress)
    size = _page_size(target, vectors) if not settings.dry_run else _page_size(source, vectors)
    with Sender(target) as sender:
        for ids in read_ids(source):
            sample.draw(ids)
            for page in in_pages(ids, size):
                sender.submit(partial(copy.writes, page))
    copy.copied.sample = sample.ids
    return copy.copied


class Sample:
    """Ids of which each had the same chance to be drawn (Vitter 1985, algorithm R)."""

    def __init__(self, size: int) -> None:
        self.ids: list[PointId] = []
        self._size = size
        self.drawn_from = 0

    def draw(self, ids: Sequence[PointId]) -> None:
        """Let more ids have a chance."""
        for point_id in ids:
            self.drawn_from += 1
            if len(self.ids) < self._size:
                self.ids.append(point_id)
            elif (place := random.randrange(self.drawn_from)) < self._size:
                self.ids[place] = point_id


def verify_copy(
    source: Collection,
    target: Collection,
    vectors: Mapping[str, models.VectorParams],
    sample: Sequence[PointId],
    *,
    beside: str | None = None,
) -> None:
    """Count both sides exactly, and compare the points of a sample.

    Args:
        source: What was copied.
        target: The copy.
        vectors: The dense vectors of the target.
        sample: Ids of points.
        beside: A vector that only the target has.

    Raises:
        NotVerified: they differ.
    """
    wanted, found = count_points(source), count_points(target)
    if wanted != found:
        raise NotVerified(
            f"collection {target.collection!r} holds {found:,} points, {source.collection!r} {wanted:,}: points were "
            "written or deleted during the copy; stop their writers and run the same command again"
        )
    dense = measures(vectors)
    for page in in_pages(sample, _page_size(target, vectors)):
        originals, copies = read_points(source, page), read_points(target, page)
        for point_id, original in originals.items():
            copy = copies.get(point_id)
            if copy is None or not same_point(without_vector(original, beside), without_vector(copy, beside), dense):
                raise NotVerified(
                    f"point {point_id!r} of collection {target.collection!r} is not what {source.collection!r} holds; "
                    "run the same command again"
                )


@dataclass(slots=True)
class _Copy:
    """A copy in progress; `writes` runs in the threads of the sender."""

    source: Collection
    target: Collection
    measures: Mapping[str, Measure]
    settings: CopySettings
    is_new: bool
    total: int
    on_progress: OnProgress
    copied: Copied = field(default_factory=Copied)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def writes(self, ids: Sequence[PointId]) -> Iterable[Write]:
        """Give what has to be written of a page."""
        wanted = read_points(self.source, ids)
        found = {} if self.is_new else read_points(self.target, [*wanted])
        added = [record for point_id, record in wanted.items() if point_id not in found]
        changed = [wanted[point_id] for point_id in found if self._differs(wanted[point_id], found[point_id])]
        if changed and not (self.settings.overwrite or self.settings.dry_run):
            raise InputError(
                f"point {changed[0].id!r} is in collection {self.target.collection!r} with other content than in the "
                "source; nothing that was there has been changed. Give --overwrite to replace such points"
            )
        if (records := added + changed) and not self.settings.dry_run:
            yield Insert([_as_point(record) for record in records])
        self._note(len(added), len(changed), len(wanted))

    def _differs(self, wanted: models.Record, found: models.Record) -> bool:
        beside = self.settings.beside
        return not same_point(without_vector(wanted, beside), without_vector(found, beside), self.measures)

    def _note(self, added: int, changed: int, read: int) -> None:
        with self.lock:
            self.copied.added += added
            self.copied.changed += changed
            self.copied.unchanged += read - added - changed
            self.on_progress(self.copied.points, self.total)


def _as_point(record: models.Record) -> models.PointStruct:
    """Give a point to write; the unnamed vector by its name, since a plain list is refused where there are others."""
    return models.PointStruct(id=record.id, vector=vectors_of(record), payload=record.payload)


def _page_size(link: Collection, vectors: Mapping[str, models.VectorParams]) -> int:
    """Give how many points a request of about `MAX_BYTES` holds, and no more than the server accepts."""
    numbers = sum(vector.size for vector in vectors.values())
    by_bytes = MAX_BYTES // (numbers * _BYTES_PER_NUMBER + _BYTES_PER_PAYLOAD)
    return max(1, min(by_bytes, read_limits(link).write))
