"""Measurements of a collection that its metadata keep, so that every program takes what the first one has measured.

A measurement is repeated when the number of points has changed by a quarter since, or when what it was made with has
changed.
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
    """Return whether a measurement at so many points still says something about a collection of another size."""
    few, many = sorted((points_then, points_now))
    return many <= max(few, 1) * GROWTH


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement, by what it depends on."""

    key: Key
    subject: str
    """Subject of its entry in the metadata."""
    made_with: Mapping[str, Any]
    """Vectors and settings; one that an entry does not name, since an earlier version wrote it, counts as the same."""

    def find(self, metadata: Mapping[str, Any], points: int | None, read: Callable[[Any], T]) -> T | None:
        """Return what the metadata keep; None where nothing is kept, or nothing that holds.

        Args:
            metadata: Of the collection.
            points: Number of points now; None takes a measurement at any number.
            read: Makes the measurement of its entry.
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
        """Return the change of the metadata that keeps a measurement."""
        return self.key.change({**self.made_with, **values, "points": points}, self.subject)

    def keep(self, collection: Collection, change: Mapping[str, Any], *, level: int = logging.INFO) -> None:
        """Change the metadata, where this program may; a failure is logged with ``level``."""
        try:
            # By an object of its own: the schema that the given one holds stays.
            collection.sibling(collection.name).update(f"keeping the {self.key.holds}", metadata=change)
        except QdrantError as error:
            logger.log(level, "collection %r: the %s was not kept (%s)", collection.name, self.key.holds, error)
