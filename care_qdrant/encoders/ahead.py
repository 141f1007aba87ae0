"""Several calls of an encoder under way, and a meter of what they did.

A device waits for nothing where the next batch is tokenised while it works on this one; a server answers many requests
at a time. Each encoder says how many calls it can use (`calls_of`); results always come back in order.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

from care_qdrant.encoders import Encoder
from care_qdrant.encoders.batching import ALIKE

T = TypeVar("T")
R = TypeVar("R")


def calls_of(encoder: Encoder) -> int:
    """Return how many calls of ``encode`` an encoder can use at a time."""
    return int(getattr(encoder, "calls", 1))


def alike_of(encoder: Encoder) -> float:
    """Return how alike in length an encoder wants the texts of a call to be: `token_batches`."""
    return float(getattr(encoder, "alike", ALIKE))


def meter_of(encoder: Encoder, otherwise: "Meter") -> "Meter":
    """Return the meter that an encoder has of its device, or another one."""
    meter: Meter = getattr(encoder, "meter", otherwise)
    return meter


def report_of(encoder: Encoder) -> dict[str, Any]:
    """Return an encoder's report of itself and of its work; empty for an encoder without a report."""
    report: Callable[[], dict[str, Any]] = getattr(encoder, "report", dict)
    return report()


def run_ahead(
    items: Iterable[T], run: Callable[[T], R], calls: Callable[[], int]
) -> Generator[tuple[T, R], None, None]:
    """Yield each item with its result, in order, while later items are run in threads."""
    items = iter(items)
    first = next(items, None)
    if first is None:
        return
    if (number := calls()) == 1:
        yield from ((item, run(item)) for item in chain([first], items))
        return
    pool = ThreadPoolExecutor(number, "encoder")
    try:
        running: deque[tuple[T, Future[R]]] = deque([(first, pool.submit(run, first))])
        for item in items:
            running.append((item, pool.submit(run, item)))
            # One slow call must not let the others run out of items.
            while len(running) >= 2 * number or (running and running[0][1].done()):
                done, future = running.popleft()
                yield done, future.result()
        while running:
            done, future = running.popleft()
            yield done, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Meter:
    """Counts tokens, padding, and the part of the time in which an encoder worked; for any number of threads."""

    def __init__(self, capacity: int = 1) -> None:
        self._capacity, self._lock, self._active = capacity, threading.Lock(), 0
        self.reset()

    def reset(self) -> None:
        """Start again at zero."""
        self._busy, self._changed, self._ended = 0.0, 0.0, 0.0
        self._first: float | None = None
        self.texts = self.tokens = self.padded_tokens = 0

    @contextmanager
    def running(self, lengths: Sequence[int] = (), padded_tokens: int | None = None) -> Iterator[None]:
        """Count the block as work on one batch; ``lengths`` are the tokens of its texts, each padded to the longest."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)
        if padded_tokens is None:
            padded_tokens = len(lengths) * max(lengths, default=0)
        self.count(len(lengths), sum(lengths), padded_tokens)

    def count(self, texts: int, tokens: int, padded_tokens: int) -> None:
        """Add the texts and tokens of a batch."""
        with self._lock:
            self.texts += texts
            self.tokens += tokens
            self.padded_tokens += padded_tokens

    def _change(self, by: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self._first = now if self._first is None else self._first
            self._busy += min(self._active, self._capacity) * (now - self._changed)
            self._active, self._changed = self._active + by, now
            self._ended = now

    @property
    def total_seconds(self) -> float:
        """Seconds from the first start to the last change."""
        return 0.0 if self._first is None else self._ended - self._first

    @property
    def busy_seconds(self) -> float:
        """Seconds of work on batches that have ended."""
        return self._busy

    @property
    def idle_fraction(self) -> float:
        """Fraction of the total in which there was no work, in [0, 1]."""
        total = self.total_seconds * self._capacity
        return max(0.0, 1 - self._busy / total) if total else 0.0

    @property
    def padding(self) -> float:
        """Padded tokens for each token, 1 or more."""
        return self.padded_tokens / self.tokens if self.tokens else 1.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens, without padding, for each second of the total."""
        return self.tokens / self.total_seconds if self.total_seconds else 0.0
