"""Measurements of a collection in its metadata, so that every program uses what the first one has measured.

A measurement is repeated when the number of points has changed by a quarter since, or when the vectors or settings
that it was made with have changed.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from care_qdrant.contracts.metadata import Key
from care_qdrant.errors import QdrantError
from care_qdrant.qdrant.collection import Collection

logger = logging.getLogger(__name__)

T = TypeVar("T")
GROWTH = 1.25
"""Ratio of a collection's numbers of points, now and at a measurement, above which the measurement is outdated."""


def holds(points_then: int, points_now: int) -> bool:
    """Return whether a measurement at one number of points is still valid at another."""
    few, many = sorted((points_then, points_now))
    return many <= max(few, 1) * GROWTH


@dataclass(frozen=True, slots=True)
class Measurement:
    """Identity of a measurement: its entry in the metadata, and the vectors and settings that it depends on."""

    key: Key
    subject: str
    """Subject of its entry in the metadata."""
    made_with: Mapping[str, Any]
    """Vectors and settings; one that an entry does not name, since an earlier version wrote it, counts as the same."""

    def find(self, metadata: Mapping[str, Any], points: int | None, read: Callable[[Any], T]) -> T | None:
        """Return the stored measurement; None where there is none or it is outdated.

        Args:
            metadata: Metadata of the collection.
            points: Number of points now; None accepts a measurement at any number.
            read: Converts the entry to the measurement.
        """
        entry = self.key.find(metadata, self.subject)
        made_with = self.made_with.items()
        if not isinstance(entry, Mapping) or any(entry.get(name, value) != value for name, value in made_with):
            return None
        with suppress(KeyError, TypeError, ValueError):  # another version wrote it
            if points is None or holds(int(entry["points"]), points):
                return read(entry)
        return None

    def change(self, values: Mapping[str, Any], points: int) -> dict[str, Any]:
        """Return the metadata update that stores a measurement."""
        return self.key.change({**self.made_with, **values, "points": points}, self.subject)

    def keep(self, collection: Collection, change: Mapping[str, Any], *, level: int = logging.INFO) -> None:
        """Store a measurement if this program may change the metadata; a failure is logged with ``level``.

        One of the points that pass a mandatory filter is not stored: it is not the collection's.
        """
        if collection.mandatory is not None:
            return
        try:
            # Through a sibling object, so that the schema which the given one holds stays.
            collection.sibling(collection.name).update(f"keeping the {self.key.holds}", metadata=change)
        except QdrantError as error:
            logger.log(level, "collection %r: the %s was not kept (%s)", collection.name, self.key.holds, error)
