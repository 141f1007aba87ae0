"""`Calls`: calls to Qdrant about one collection, tried again as long as the caller is patient."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from qdrant_client import QdrantClient, models

from care_qdrant.errors import Unreachable, counted
from care_qdrant.qdrant.connection import client_lock, is_embedded
from care_qdrant.qdrant.retry import (
    NotCompleted,
    Outage,
    RequestTooLarge,
    RetryPolicy,
    describe_error,
    least_delay,
)

logger = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741  # an item
T = TypeVar("T")
Written = models.UpdateResult | Sequence[models.UpdateResult]


def in_pages(items: Sequence[I], size: int) -> Iterator[Sequence[I]]:
    """Cut items into runs of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def in_requests(items: Sequence[I], size: int, call: Callable[[Sequence[I]], T]) -> Iterator[T]:
    """Yield the result of ``call`` for each page of items; pages that the server finds too large are halved."""
    for page in in_pages(items, size):
        try:
            done = call(page)
        except RequestTooLarge:
            if len(page) == 1:
                raise
            yield from in_requests(page, (len(page) + 1) // 2, call)
        else:
            yield done


class Calls:
    """Calls to one Qdrant, one retry policy for all; may be used from several threads.

    The embedded database is not made for threads: its calls wait for each other, including calls of other objects
    on the same client.
    """

    def __init__(self, client: QdrantClient, name: str, policy: RetryPolicy | None) -> None:
        self.client, self.name = client, name
        self.policy = policy or RetryPolicy()
        self.is_embedded = is_embedded(client)
        self._lock = client_lock(client)
        self._stopped = threading.Event()
        self._outage = Outage()

    def call(self, what: str, operation: Callable[[], T]) -> T:
        """Return the result of ``operation``, retried for as long as the policy allows.

        Waiting that the server itself has asked for (``Retry-After``) counts against the patience like any other.
        """
        where = f"{what} in collection {self.name!r}"
        attempts, since = 0, 0.0
        while True:
            try:
                with self._lock:
                    start = time.monotonic()
                    result = operation()
                    logger.debug("%s: %.0f ms", where, (time.monotonic() - start) * 1e3)
            except Exception as error:
                least_seconds = least_delay(error, where)
                now = time.monotonic()
                since = since if attempts else now
                attempts += 1
                logger.debug("%s: attempt %d failed (%s)", where, attempts, describe_error(error))
                if self.policy.is_over(attempts, now - since):
                    raise Unreachable(
                        f"{where}: gave up after {counted(attempts, 'attempt')} ({describe_error(error)})"
                    ) from error
                if attempts > 1 or least_seconds >= 1:
                    self._outage.begin(f"{where}: waiting for Qdrant ({describe_error(error)})")
                if self._stopped.wait(max(self.policy.delay(attempts - 1), least_seconds)):
                    message = f"{what}: stopped after {counted(attempts, 'attempt')} ({describe_error(error)})"
                    raise Unreachable(message) from error
            else:
                if attempts:
                    self._outage.end(where)
                return result

    def alone(self) -> AbstractContextManager[Any]:
        """Make other calls to the embedded database wait until the end of the block; calls to a server never wait."""
        return self._lock

    def write(self, what: str, operation: Callable[[], Written]) -> None:
        """Call a write that has ``wait=True`` until its status is ``completed``."""

        def completed() -> None:
            results = operation()
            for result in results if isinstance(results, Sequence) else [results]:
                if result.status is not models.UpdateStatus.COMPLETED:
                    raise NotCompleted(f"status {result.status.value}, expected completed")

        self.call(what, completed)

    def stop(self) -> None:
        """End all waiting: a run that has failed or was interrupted makes no more attempts."""
        self._stopped.set()
