"""The versions of an alias: the collections that publishing made, which one readers search, what the next is called."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from care_qdrant.errors import InputError, next_command
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.schema import VersionRecord


@dataclass(frozen=True, slots=True)
class Versions:
    """All versions of one alias."""

    alias: str
    live: str | None
    """The collection behind the alias, which another tool may have made; None where there is no such alias."""
    records: Mapping[str, VersionRecord]
    """The record of each version that publishing made."""
    highest: int
    """Highest number of all collections that are named like a version, whoever made them."""

    def name_for(self, source: str) -> str:
        """Return the version that an interrupted run was making of a collection, or else a name that is free.

        A run that was stopped at any moment before its switch leaves a version with a number above the live one.
        """
        for name, record in sorted(self.records.items(), key=lambda item: self.number(item[0]), reverse=True):
            is_done = record.withdrawn or self.number(name) <= self.number(self.live)
            if record.source == source and not is_done:
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
            f"{alias!r} is a collection, and Qdrant lets no alias have the name of one. Publish it under another name, "
            "which its readers then search, " + next_command(f"care publish {alias} --as {alias}-live", model=False)
        )
    numbers = {name: number for name in names if (number := _number(alias, name))}
    found = {name: collection.sibling(name).schema.version_record for name in numbers}
    records = {name: record for name, record in found.items() if record is not None}
    return Versions(alias, collection.aliases().get(alias), records, highest=max(numbers.values(), default=0))


def delete_old(live: Collection, versions: Versions, keep: int) -> list[str]:
    """Delete versions that are older than the live one and that no alias points at; return their names."""
    used, number = set(live.aliases().values()), versions.number(live.name)
    older = [name for name in versions.records if versions.number(name) < number and name not in used]
    older.sort(key=lambda name: (name == versions.live, versions.number(name)), reverse=True)
    for name in older[keep:]:
        live.sibling(name).drop()
    return older[keep:]


def _number(alias: str, collection: str) -> int:
    match = re.fullmatch(f"{re.escape(alias)}_v([1-9][0-9]*)", collection)
    return int(match[1]) if match else 0
