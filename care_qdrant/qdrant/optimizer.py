"""Waits for a server's optimizer where a change or a read before its end would go wrong without an error."""

import logging
from typing import TYPE_CHECKING

from qdrant_client import models

from care_qdrant.errors import QdrantError

if TYPE_CHECKING:
    from care_qdrant.qdrant.collection import Collection

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2
"""Time to wait before a warning says what is waited for."""
LONGEST_SECONDS = 600
"""Longest time to wait for an optimizer."""


def wait_before_renaming(collection: "Collection") -> None:
    """Wait before a change of the vectors' names; after the longest time, warn and go on."""
    # Qdrant 1.18.3 forgets deletions: a point that was deleted while the optimizer ran, and before such a change, is
    # there again afterwards.
    if collection.is_embedded or not _is_busy(collection, "is being optimized: waiting before its vectors are changed"):
        return
    logger.warning(
        "collection %r is still being optimized after %d minutes, and its vectors are changed all the same: a "
        "point that was deleted in the meantime may be there again (Qdrant 1.18.3); delete it once more",
        collection.name,
        LONGEST_SECONDS // 60,
    )


def wait_for_hidden_points(collection: "Collection") -> None:
    """Wait where the server shows no point before its optimizer has dealt with it (`prevent_unoptimized`).

    Raises:
        QdrantError: The server hides points still after the longest time.
    """
    # Counts, reads and searches leave those out without a word: a copy or an attach would be whole without them.
    config = None if collection.is_embedded else collection.schema.config.optimizer_config
    if not getattr(config, "prevent_unoptimized", None):
        return
    if _is_busy(collection, "hides points until it is optimized: waiting for that"):
        raise QdrantError(
            f"collection {collection.name!r} still hides points after {LONGEST_SECONDS // 60} minutes, since its "
            "optimizer has prevent_unoptimized and has not finished; run the same command again later"
        )


def _is_busy(collection: "Collection", warning: str) -> bool:
    """Wait for the optimizer; return whether it is still at work after the longest time."""
    info = collection.wait_for_optimizer(QUIET_SECONDS)
    if info.status is models.CollectionStatus.YELLOW:
        logger.warning("collection %r %s", collection.name, warning)
        info = collection.wait_for_optimizer(LONGEST_SECONDS, 1)
    return info.status is models.CollectionStatus.YELLOW
