"""Lets a producer run ahead of its consumer in a thread of its own."""

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
LEAVE_SECONDS = 2.0
"""Waited for the producer when its consumer stops. One that reads an idle pipe never ends, and is left behind."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


_END: Any = object()


def read_ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Return the items in order, while a thread makes the next ones.

    Args:
        items: Used by that thread only. What it raises is raised here, in its place.
        depth: Items that may be finished before they are asked for.
    """
    ready: SimpleQueue[Any] = SimpleQueue()
    room = threading.Semaphore(depth)
    stopped = threading.Event()

    def produce() -> None:
        try:
            for item in items:
                ready.put(item)
                room.acquire()
                if stopped.is_set():
                    return
        except BaseException as error:
            ready.put(_Failure(error))
        else:
            ready.put(_END)

    # A daemon, since it may wait for a pipe for ever, and an executor's threads are joined at exit, against Ctrl-C.
    reader = threading.Thread(target=produce, name="reader", daemon=True)
    reader.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            room.release()
            yield item
    finally:
        stopped.set()
        room.release()
        reader.join(LEAVE_SECONDS)
