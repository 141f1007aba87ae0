"""Retries of calls to Qdrant: the errors that are transient, the number of attempts, and the pauses between them.

Waiting is exponential with full jitter (Brooker 2015, "Exponential backoff and jitter"), and the time without an answer
is bounded: qdrant-client itself either never retries (``upsert``) or retries everything at once and 429 without bound.
"""

import logging
import random
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import Error as MessageError  # type: ignore[import-untyped]
from pydantic import ValidationError
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from care_qdrant.errors import QdrantError, Rejected, redact
from care_qdrant.forking import ForkLock
from care_qdrant.patience import PATIENCE_SECONDS

logger = logging.getLogger(__name__)


TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
TRANSIENT_GRPC = frozenset(
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

_TOO_LARGE = ("larger than max", "larger than rate limiter capacity")
"""Wording of the gRPC message limit, and of a strict-mode rate that one request alone exceeds."""
_NOT_FOUND_ELSEWHERE = "code: 'Some requested entity was not found'"
"""Part of a node's answer that passes on the answer of another node, which was away when the collection was made and
will learn of it soon. For a collection that does not exist, a node answers by itself."""
_NO_POINT = "No point with id"
"""Part of the answer to a request with the id of a missing point, also from another node: retries do not help."""


class RequestTooLarge(Exception):
    """The server takes no request of this size; the same points in smaller requests may pass."""


class NotCompleted(Exception):
    """The server accepted a write and did not finish it in time; a retry is harmless, since the ids are fixed."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Patience and waiting times. The default outlasts the restart of a large node."""

    patience_seconds: float = PATIENCE_SECONDS
    """Longest time without an answer, from the first failure on; 0 makes one attempt."""
    attempts: int | None = None
    """Highest number of attempts; None leaves it to the time."""
    base_seconds: float = 0.5
    cap_seconds: float = 20.0

    def delay(self, attempt: int) -> float:
        """Return the seconds until the next attempt: uniform in [0, ``base * 2^attempt``], capped."""
        return random.uniform(0, min(self.cap_seconds, self.base_seconds * 2 ** min(attempt, 30)))

    def is_over(self, attempts: int, seconds: float) -> bool:
        """Return whether to give up after this many failed attempts in a row, in this many seconds."""
        return attempts == self.attempts or seconds >= self.patience_seconds


class Outage:
    """Logs one line when calls begin to wait for Qdrant, and one when they resume; shared by threads."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._since: float | None = None

    def begin(self, message: str) -> None:
        """Log that a call waits, unless another one is waiting already."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                logger.warning("%s", message)

    def end(self, where: str) -> None:
        """Log that calls resume, if one had to wait."""
        with self._lock:
            if self._since is not None:
                logger.warning("%s: resumed after %.1f s", where, time.monotonic() - self._since)
                self._since = None


def least_delay(error: Exception, where: str) -> float:
    """Return the least number of seconds to wait before a failed call is retried; raise if it must not be retried."""
    message = describe_error(error)
    if _is_too_large(error, message):
        raise RequestTooLarge(message) from error
    unread = error.source if isinstance(error, ResponseHandlingException) else None
    if isinstance(unread, ValidationError) and any("score" in problem["loc"] for problem in unread.errors()):
        raise QdrantError(
            f"{where}: Qdrant's answer has a score that is no number, as of a stored vector with NaN or infinite "
            f"numbers: write such points again ({message})"
        ) from error
    if isinstance(error, ResourceExhaustedResponse):
        return min(float(error.retry_after_s), LONGEST_RETRY_AFTER_SECONDS)
    if _is_transient(error):
        return 0.0
    if isinstance(error, sqlite3.Error | OSError):
        raise QdrantError(
            f"{where}: the folder of the embedded database cannot be read or written ({message}); check its disk and "
            "its permissions"
        ) from error
    if not isinstance(error, UnexpectedResponse | grpc.RpcError | MessageError | ValueError | KeyError):
        raise error
    if is_collection_gone(error):
        raise Rejected(f"{where}: there is no such collection any more") from error
    needs_more = "access is required" in message or "Write access to" in message
    advice = ". Give a key that may write" if needs_more else ""
    raise Rejected(f"{where}: Qdrant refuses it: {message}{advice}") from error


def is_not_found(error: Exception) -> bool:
    """Return whether Qdrant says that something a request names does not exist, such as a deleted collection."""
    cause = error.__cause__ if isinstance(error, Rejected) else error
    is_missing = isinstance(cause, ValueError) and "not found" in str(cause)  # by the embedded database
    return is_missing or _says(cause, 404, grpc.StatusCode.NOT_FOUND)


def is_collection_gone(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, says that the collection of a request does not exist."""
    while isinstance(error, Exception):
        if is_not_found(error) and "Collection " in str(error):  # not a point, which another client may have deleted
            return True
        error = error.__cause__
    return False


def is_forbidden(error: Rejected) -> bool:
    """Return whether the server says that the key lacks the permission."""
    return _says(error.__cause__, 403, grpc.StatusCode.PERMISSION_DENIED)


def _says(error: BaseException | None, status: int, code: grpc.StatusCode) -> bool:
    if isinstance(error, UnexpectedResponse):
        return error.status_code == status
    return isinstance(error, grpc.RpcError) and bool(_grpc_code(error) is code)


def _is_too_large(error: Exception, message: str) -> bool:
    is_413 = isinstance(error, UnexpectedResponse) and error.status_code == 413
    return is_413 or any(wording in message for wording in _TOO_LARGE)


def _is_transient(error: Exception) -> bool:
    if isinstance(error, UnexpectedResponse):
        is_behind = error.status_code == 404 and _is_behind(error.content.decode(errors="replace"))
        return error.status_code in TRANSIENT_STATUS or is_behind
    if isinstance(error, grpc.RpcError):
        is_behind = _grpc_code(error) is grpc.StatusCode.NOT_FOUND and _is_behind(_describe(error))
        return _grpc_code(error) in TRANSIENT_GRPC or is_behind
    return isinstance(error, ResponseHandlingException | NotCompleted)


def _is_behind(answer: str) -> bool:
    """Return whether a node has not yet learned of a collection that the request names."""
    return _NOT_FOUND_ELSEWHERE in answer and _NO_POINT not in answer


def describe_error(error: Exception) -> str:
    """Return an error in one line of at most about 300 characters, without secrets."""
    return redact(_describe(error))


def _describe(error: Exception) -> str:
    if isinstance(error, UnexpectedResponse):
        return f"{error.status_code} {error.content.decode(errors='replace')[:300]}"
    if callable(details := getattr(error, "details", None)):
        return f"{_grpc_code(error)} {details()}"
    return f"{type(error).__name__}: {error}"[:300]


def _grpc_code(error: Any) -> Any:
    return error.code() if callable(getattr(error, "code", None)) else None
