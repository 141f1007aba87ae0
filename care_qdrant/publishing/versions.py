"""The versions of a published collection: ``corpus_v1``, ``corpus_v2`` …, and the alias that one of them stands behind.

What a version is a copy of, and what it replaced, it keeps in its own metadata: there is no other book to get lost or
to disagree.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.errors import InputError
from care_qdrant.store.contracts import collection_names
from care_qdrant.store.retry import Collection
from care_qdrant.store.schema import aliases

PUBLISH_KEY = "care_publish"
"""In the metadata of a version."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a version remembers of its making."""

    source: str
    """The collection that it is a copy of."""
    replaces: str | None = None
    """What the alias pointed at before; a rollback goes there."""
    withdrawn: bool = False
    """A rollback left it: no later run goes on with it."""
    adds: str | None = None
    """The vector that it has beside those of its source, where ``care attach --via copy`` made it."""


@dataclass(frozen=True, slots=True)
class Versions:
    """All of one alias."""

    alias: str
    live: str | None
    """The collection behind the alias, which another tool may have made; None where there is no such alias."""
    marks: Mapping[str, Mark]
    """Of each version that publishing made."""
    highest: int
    """Number of all collections that are named like a version, whoever made them."""

    def name_for(self, source: str, adds: str | None = None) -> str:
        """Give the version that an interrupted run was making of a collection, or else a name that is free.

        A run that was stopped at any moment before its switch leaves a version with a number above the live one.
        """
        for name, mark in sorted(self.marks.items(), key=lambda item: self.number(item[0]), reverse=True):
            is_whole_or_left = mark.withdrawn or self.number(name) <= self.number(self.live)
            if (mark.source, mark.adds) == (source, adds) and not is_whole_or_left:
                return name
        return f"{self.alias}_v{self.highest + 1}"

    def number(self, collection: str | None) -> int:
        """Give the number in the name of a version; 0 for any other collection."""
        return _number(self.alias, collection or "")


def read_versions(link: Collection, alias: str) -> Versions:
    """Look up an alias and its versions.

    Raises:
        InputError: ``alias`` is the name of a collection.
    """
    names = link.call("reading the collections", lambda: collection_names(link.client))
    if alias in names:
        raise InputError(
            f"{alias!r} is a collection, and Qdrant lets no alias have the name of one. Publish it under another name, "
            f"which its readers then search: care publish {alias} --as {alias}-live"
        )
    numbers = {name: number for name in names if (number := _number(alias, name))}
    marks = {name: mark for name in numbers if (mark := read_mark(link, name)) is not None}
    live = link.call("reading the aliases", lambda: aliases(link.client)).get(alias)
    return Versions(alias, live, marks, highest=max(numbers.values(), default=0))


def write_mark(version: Collection, mark: Mark) -> None:
    """Let a version remember a mark, beside what else it remembers."""
    metadata = as_metadata(mark)
    version.call("marking", lambda: version.client.update_collection(version.collection, metadata=metadata))


def as_metadata(mark: Mark) -> dict[str, Any]:
    """Give a mark as a collection stores it."""
    return {PUBLISH_KEY: asdict(mark)}


def point_alias(version: Collection, versions: Versions) -> None:
    """Let the alias point at a version, in one step: at no moment is it missing."""
    create = models.CreateAlias(collection_name=version.collection, alias_name=versions.alias)
    steps: list[models.AliasOperations] = [models.CreateAliasOperation(create_alias=create)]
    if versions.live is not None:
        delete = models.DeleteAlias(alias_name=versions.alias)
        steps.insert(0, models.DeleteAliasOperation(delete_alias=delete))
    version.call("switching the alias", lambda: version.client.update_collection_aliases(steps))


def delete_old(live: Collection, versions: Versions, keep: int) -> list[str]:
    """Delete versions that are older than the live one and that no alias points at; give their names.

    Args:
        live: The version behind the alias.
        versions: As they were before the alias was switched to it.
        keep: How many of the older ones stay; the one that the live one replaced is the first of them.
    """
    used = set(live.call("reading the aliases", lambda: aliases(live.client)).values())
    number = versions.number(live.collection)
    older = [name for name in versions.marks if versions.number(name) < number and name not in used]
    older.sort(key=lambda name: (name == versions.live, versions.number(name)), reverse=True)
    for name in older[keep:]:
        live.call("deleting an old version", lambda: live.client.delete_collection(name))  # noqa: B023  # called at once
    return older[keep:]


def read_mark(link: Collection, collection: str) -> Mark | None:
    """Give the mark of a collection; None for one that was not made by publishing."""
    info = link.call("reading a version", lambda: link.client.get_collection(collection))
    mark = (info.config.metadata or {}).get(PUBLISH_KEY)
    return Mark(**{key: mark[key] for key in mark.keys() & Mark.__dataclass_fields__.keys()}) if mark else None


def _number(alias: str, collection: str) -> int:
    match = re.fullmatch(f"{re.escape(alias)}_v([1-9][0-9]*)", collection)
    return int(match[1]) if match else 0
