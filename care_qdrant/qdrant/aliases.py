"""The versions of an alias: the collections that publishing made, the one that readers search, the name of the next."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from care_qdrant.contracts.metadata import COPY
from care_qdrant.errors import InputError, next_command
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.schema import CollectionSchema, VersionRecord


@dataclass(frozen=True, slots=True)
class Versions:
    """All versions of one alias."""

    alias: str
    live: str | None
    """The collection behind the alias, which another tool may have made; None without such an alias."""
    schemas: Mapping[str, CollectionSchema]
    """The schema of each version that publishing made."""
    highest: int
    """Highest number of all collections named like a version, including collections of other programs."""
    searched: frozenset[str]
    """Collections behind any alias."""

    def record(self, name: str) -> VersionRecord | None:
        """Return the record of a version; None for a collection that publishing did not make."""
        schema = self.schemas.get(name)
        return None if schema is None else schema.version_record

    def name_for(self, source: Collection) -> str:
        """Return the version that an interrupted run was making of a collection, or else a name that is free.

        A run that was stopped before its switch leaves a version with a number above the live one. If the vectors of
        the source have changed since, that version stays behind, and `delete_old` removes it with the older ones.
        """
        for name in sorted(self.schemas, key=self.number, reverse=True):
            record = self.record(name)
            if record is None or record.withdrawn or self.number(name) <= self.number(self.live):
                continue
            if name in self.searched:  # readers of another alias would meet the changes
                continue
            if (
                self.live is None and COPY.find(self.schemas[name].metadata) is None
            ):  # it was live: no snapshot has aliases
                continue
            if record.source == source.name and self.schemas[name].has_vectors_of(source.schema):
                return name
        return f"{self.alias}_v{self.highest + 1}"

    def number(self, collection: str | None) -> int:
        """Return the number in the name of a version; 0 for any other collection."""
        return _number(self.alias, collection or "")


def read_versions(collection: Collection, alias: str) -> Versions:
    """Look up an alias and its versions."""
    names = collection.names()
    if alias in names:
        raise InputError(
            f"{alias!r} is a collection, and an alias cannot have the same name. Publish it under another name, "
            "which its readers then search, " + next_command(f"care publish {alias} --as {alias}-live", model=False)
        )
    numbers = {name: number for name in names if (number := _number(alias, name))}
    schemas = {name: collection.sibling(name).schema for name in numbers}
    published = {name: schema for name, schema in schemas.items() if schema.version_record is not None}
    aliases = collection.aliases()
    highest = max(numbers.values(), default=0)
    return Versions(alias, aliases.get(alias), published, highest, searched=frozenset(aliases.values()))


def delete_old(live: Collection, versions: Versions, keep: int) -> list[str]:
    """Delete versions that are older than the live one and that no alias points at; return their names."""
    used, number = set(live.aliases().values()), versions.number(live.name)
    older = [name for name in versions.schemas if versions.number(name) < number and name not in used]
    older.sort(key=lambda name: (name == versions.live, versions.number(name)), reverse=True)
    for name in older[keep:]:
        live.sibling(name).drop()
    return older[keep:]


def _number(alias: str, collection: str) -> int:
    match = re.fullmatch(f"{re.escape(alias)}_v([1-9][0-9]*)", collection)
    return int(match[1]) if match else 0
