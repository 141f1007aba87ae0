"""Reads a collection slice by slice, in one process or several.

A slice is a part of the points that depends on their ids alone: slices are disjoint and never change. So several
processes can each read one, and a command that records which ones it has read can resume with the others.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from qdrant_client import models

from care_qdrant.errors import QdrantError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import OpenClient, opener_of
from care_qdrant.qdrant.readable import PointId
from care_qdrant.qdrant.retry import RetryPolicy

MOST_SLICES = 16
"""Largest number of slices: each is found by a walk over all ids, which costs the server a little."""
POINTS_OF_SLICE = 262_144
"""Least number of points in a slice. A process takes two seconds of CPU to start; reading this many ids takes as long,
and this many payloads five times as long (benchmarks/results/bulk-slices.json)."""
PROGRESS_SECONDS = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slice:
    """One of the slices of a collection."""

    number: int
    """Number of the slice, from 0."""
    total: int
    """Number of all slices."""
    where: models.Filter | None
    """Filter that passes the points of the slice; None where it is the whole collection."""


Note = Callable[[int], None]
"""Function that is called with the number of points read since its last call."""
ReadSlice = Callable[[Collection, Slice, Note], T]
"""Function that reads one slice."""


def stateless(read_slice: ReadSlice[T]) -> AbstractContextManager[ReadSlice[T]]:
    """Wrap a function that reads slices and needs no resources as the context manager that `read_slices` expects."""
    return nullcontext(read_slice)


def slices_of(place: Collection, total: int) -> list[Slice]:
    """Return about ``total`` slices; where the server does not support them, one: the whole collection."""
    filters = place.slices(max(1, min(MOST_SLICES, total)))
    return [Slice(number, len(filters), where) for number, where in enumerate(filters)]


def slices_for_readers(place: Collection) -> list[Slice]:
    """Return slices that are each worth a process; the whole collection where one process reads it."""
    return slices_of(place, 1 if place.readers < 2 else place.count() // POINTS_OF_SLICE)


def place_in_order(point_id: PointId, seed: int) -> bytes:
    """Return a point's sort key in a random order of all points, which depends on its id and a seed alone.

    The first points in this order are a sample, and the first ones of several slices are a sample of all of them.
    """
    return blake2b(str(point_id).encode(), digest_size=8, key=str(seed).encode()).digest()


def read_slices(
    place: Collection,
    open_reader: Callable[[], AbstractContextManager[ReadSlice[T]]],
    slices: Sequence[Slice],
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[T]:
    """Read slices in as many processes as the collection may have readers, and return the result of each.

    Args:
        place: The collection. A client that was not opened by `open_client` is used in this process alone.
        open_reader: Opens the function that reads a slice, once in each process; has to be picklable.
        slices: The slices to read.
        on_progress: Called with the number of points that were read.
    """
    opener = opener_of(place.client)
    if opener is None or min(place.readers, len(slices)) < 2:
        return _in_this_process(place, open_reader, slices, on_progress)
    return _in_processes(place, open_reader, slices, opener, on_progress)


def _in_this_process(
    place: Collection,
    open_reader: Callable[[], AbstractContextManager[ReadSlice[T]]],
    slices: Sequence[Slice],
    on_progress: Callable[[int], None],
) -> list[T]:
    read = 0

    def note(points: int) -> None:
        nonlocal read
        read += points
        on_progress(read)

    with open_reader() as read_slice:
        return [read_slice(place, slice_, note) for slice_ in slices]


def _in_processes(
    place: Collection,
    open_reader: Callable[[], AbstractContextManager[ReadSlice[T]]],
    slices: Sequence[Slice],
    opener: OpenClient,
    on_progress: Callable[[int], None],
) -> list[T]:
    """Read slices in processes: in threads, parsing answers and hashing texts would share one core."""
    context = multiprocessing.get_context("spawn")
    read = context.Value("q", 0)
    given = (opener, place.name, place.policy, place.shard_key, open_reader, read)
    pool = ProcessPoolExecutor(min(place.readers, len(slices)), context, _start, given)
    try:
        futures: list[Future[T]] = [pool.submit(_read_slice, slice_) for slice_ in slices]
        running = set(futures)
        while running:
            done, running = wait(running, PROGRESS_SECONDS, FIRST_COMPLETED)
            on_progress(read.value)
            for future in done:
                future.result()
        return [future.result() for future in futures]
    except BrokenExecutor as error:
        raise QdrantError(
            f"collection {place.name!r}: a process that read it died, perhaps for lack of memory. Run the same command "
            "again; with OMP_NUM_THREADS=1 it is read by one process"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Reader:
    """The state of a process that reads a collection."""

    place: Collection
    read_slice: ReadSlice[Any]
    read: Any


_reader: _Reader | None = None
_opened = ExitStack()


def _start(
    opener: OpenClient,
    name: str,
    policy: RetryPolicy,
    shard_key: models.ShardKey | None,
    open_reader: Callable[[], AbstractContextManager[ReadSlice[Any]]],
    read: Any,
) -> None:
    global _reader
    threading.Thread(target=_end_with_parent, daemon=True).start()
    place = Collection(_opened.enter_context(opener()), name, policy, shard_key=shard_key)
    _reader = _Reader(place, _opened.enter_context(open_reader()), read)


def _end_with_parent() -> None:
    """End this process when its parent was killed: its result would be lost."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _read_slice(slice_: Slice) -> Any:
    assert _reader is not None
    counter = _reader.read

    def note(points: int) -> None:
        with counter.get_lock():
            counter.value += points

    return _reader.read_slice(_reader.place, slice_, note)
