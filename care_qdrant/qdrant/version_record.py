"""What a version of a published collection keeps in its own metadata about its making."""

from dataclasses import asdict, dataclass
from typing import Any

from care_qdrant.qdrant.schema import PUBLISH_KEY, CollectionSchema


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """How a version was made, and what it replaced."""

    source: str
    """The collection that it is a copy of."""
    replaces: str | None = None
    """The collection behind the alias before; a rollback switches back to it."""
    withdrawn: bool = False
    """A rollback left it: no later run continues it."""
    adds: str | None = None
    """The vector that it has beside those of its source, where ``care attach --via copy`` made it."""

    def metadata(self) -> dict[str, Any]:
        """Return the record as a collection stores it."""
        return {PUBLISH_KEY: asdict(self)}


def version_record(schema: CollectionSchema) -> VersionRecord | None:
    """Return the record of a version; None for a collection that publishing did not make."""
    entry = schema.metadata.get(PUBLISH_KEY)
    if not isinstance(entry, dict) or "source" not in entry:
        return None
    return VersionRecord(**{key: entry[key] for key in entry.keys() & VersionRecord.__dataclass_fields__.keys()})
