"""Waits for a server's optimizer where a change or a read before its end would go wrong without an error."""

import logging
import time
from collections.abc import Callable

from qdrant_client import models

from care_qdrant.errors import QdrantError

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2
"""Time to wait before a warning explains the delay."""
LONGEST_SECONDS = 600
"""Longest time to wait for an optimizer."""

ReadInfo = Callable[[], models.CollectionInfo]
"""Function that asks Qdrant for the state of a collection."""


def wait_for_optimizer(
    info: ReadInfo, longest_seconds: float, poll_seconds: float = 0.1, *, sleep: Callable[[float], None] = time.sleep
) -> models.CollectionInfo:
    """Wait until a server neither builds an index nor moves points, and return its description of the collection.

    After ``longest_seconds`` that is the last answer, whose status is still yellow.
    """
    until = time.monotonic() + longest_seconds
    while True:
        answer = info()
        if answer.status is not models.CollectionStatus.YELLOW or time.monotonic() >= until:
            return answer
        sleep(poll_seconds)


def wait_before_renaming(collection: str, info: ReadInfo) -> None:
    """Wait before a change of the vectors' names; after the longest time, warn and go on."""
    # Qdrant 1.18.3 forgets deletions: a point that was deleted while the optimizer ran, and before such a change,
    # reappears afterwards.
    if _is_busy(collection, info, "is being optimized: waiting before its vectors are changed"):
        logger.warning(
            "collection %r is still being optimized after %d minutes; its vectors are changed anyway. A point that "
            "was deleted in the meantime may reappear (Qdrant 1.18.3); if so, delete it again",
            collection,
            LONGEST_SECONDS // 60,
        )


def wait_for_hidden_points(collection: str, info: ReadInfo) -> None:
    """Wait while the server hides points that its optimizer has not processed yet (`prevent_unoptimized`).

    Raises:
        QdrantError: The server still hides points after the longest time.
    """
    if _is_busy(collection, info, "hides points until it is optimized: waiting for that"):
        raise QdrantError(
            f"collection {collection!r} still hides points after {LONGEST_SECONDS // 60} minutes, since its "
            "optimizer has prevent_unoptimized and has not finished; run the same command again later"
        )


def _is_busy(collection: str, info: ReadInfo, warning: str) -> bool:
    """Wait for the optimizer; return whether it is still at work after the longest time."""
    answer = wait_for_optimizer(info, QUIET_SECONDS)
    if answer.status is models.CollectionStatus.YELLOW:
        logger.warning("collection %r %s", collection, warning)
        answer = wait_for_optimizer(info, LONGEST_SECONDS, 1)
    return answer.status is models.CollectionStatus.YELLOW
