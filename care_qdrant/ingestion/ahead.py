"""Lets a producer run ahead of its consumer in a thread of its own."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def read_ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Return the items in order, while a thread makes the next ones.

    Args:
        items: Used by that thread only. What it raises is raised here, in its place.
        depth: Items that may be finished before they are asked for.
    """
    end: Any = object()
    executor = ThreadPoolExecutor(1, "reader")
    try:
        pending = deque(executor.submit(next, items, end) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(executor.submit(next, items, end))
            yield item
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
