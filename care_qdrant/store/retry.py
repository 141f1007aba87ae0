"""Calls to Qdrant that may fail for a while: which errors pass, how often to try, how long to wait.

Waiting is exponential with full jitter (Brooker 2015, "Exponential backoff and jitter"), and the number of attempts is
bounded: qdrant-client itself either never retries (``upsert``) or retries everything at once and 429 for ever.
"""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
import httpx
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from care_qdrant.errors import Rejected, Unreachable
from care_qdrant.store.connection import is_embedded

logger = logging.getLogger(__name__)
T = TypeVar("T")

PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
PASSING_GRPC = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
LONGEST_RETRY_AFTER_SECONDS = 120.0


class RequestTooLarge(Exception):
    """The server takes no request of this size; the same points in smaller requests may pass."""


class NotCompleted(Exception):
    """The server took a write and did not finish it in its time; writing again is harmless, the ids are fixed."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient to be. The default outlasts a restart of a minute."""

    attempts: int = 12
    base_seconds: float = 0.5
    cap_seconds: float = 20.0

    def delay(self, attempt: int) -> float:
        """Give the seconds until the next attempt: a random share of ``base * 2^attempt``, capped."""
        return random.uniform(0, min(self.cap_seconds, self.base_seconds * 2**attempt))


@dataclass(frozen=True, slots=True)
class _Passing:
    """An error that may be gone at the next attempt."""

    at_least_seconds: float = 0.0


class Collection:
    """One collection of one Qdrant, reached with retries; may be used from several threads.

    The embedded database is not made for threads: there, calls wait for each other.
    """

    def __init__(self, client: QdrantClient, collection: str, policy: RetryPolicy | None = None) -> None:
        self.client, self.collection = client, collection
        self.policy = policy or RetryPolicy()
        self._lock = threading.RLock() if is_embedded(client) else nullcontext()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End all waiting: a run that has failed or was interrupted makes no more attempts."""
        self._stopped.set()

    def call(self, what: str, operation: Callable[[], T]) -> T:
        """Give the result of ``operation``, called as often as the policy allows.

        Args:
            what: For messages, as in "writing 256 points".
            operation: Safe to repeat.

        Raises:
            Unreachable: all attempts are used up.
            Rejected: Qdrant says that the request is wrong.
            RequestTooLarge: it says that the request is too large.
        """
        for attempt in range(self.policy.attempts):
            try:
                with self._lock:
                    return operation()
            except Exception as error:
                passing = self._classify(error, what)
                if attempt + 1 == self.policy.attempts:
                    where = f"{what} in collection {self.collection!r}"
                    raise Unreachable(f"{where}: gave up after {attempt + 1} attempts ({_line(error)})") from error
                logger.warning("%s: attempt %d failed (%s)", what, attempt + 1, _line(error))
                seconds = max(self.policy.delay(attempt), passing.at_least_seconds)
                if self._stopped.wait(seconds):
                    raise Unreachable(f"{what}: stopped after {attempt + 1} attempts ({_line(error)})") from error
        raise AssertionError("a policy has at least one attempt")

    def write(self, what: str, operation: Callable[[], models.UpdateResult | Sequence[models.UpdateResult]]) -> None:
        """Call a write that has ``wait=True``, and accept nothing less than ``completed``."""

        def completed() -> None:
            results = operation()
            for result in results if isinstance(results, Sequence) else [results]:
                if result.status is not models.UpdateStatus.COMPLETED:
                    raise NotCompleted(f"status {result.status.value}, expected completed")

        self.call(what, completed)

    def _classify(self, error: Exception, what: str) -> _Passing:
        """Let passing errors through; raise what the others mean."""
        if isinstance(error, ResourceExhaustedResponse):
            return _Passing(min(float(error.retry_after_s), LONGEST_RETRY_AFTER_SECONDS))
        if isinstance(error, ResponseHandlingException | httpx.TransportError | NotCompleted):
            return _Passing()
        if isinstance(error, UnexpectedResponse):
            if error.status_code in PASSING_STATUS:
                return _Passing()
            if error.status_code == 413:
                raise RequestTooLarge(_line(error)) from error
        elif isinstance(error, grpc.RpcError):
            if "larger than max" in _line(error):
                raise RequestTooLarge(_line(error)) from error
            if _grpc_code(error) in PASSING_GRPC:
                return _Passing()
        elif not isinstance(error, ValueError | KeyError):
            raise error
        advice = ". Give a key that may write" if "access is required" in _line(error) else ""
        raise Rejected(
            f"{what} in collection {self.collection!r}: Qdrant refuses it: {_line(error)}{advice}"
        ) from error


def _grpc_code(error: Any) -> Any:
    return error.code() if callable(getattr(error, "code", None)) else None


def _line(error: Exception) -> str:
    """Give the gist of an error in one line."""
    if isinstance(error, UnexpectedResponse):
        return f"{error.status_code} {error.content.decode(errors='replace')[:300]}"
    if callable(details := getattr(error, "details", None)):
        return f"{_grpc_code(error)} {details()}"
    return f"{type(error).__name__}: {error}"[:300]
