"""The metadata of a collection: the kinds of entries, who writes and reads each, and how long it stays.

Qdrant merges metadata at the top level, so that every entry has a key of its own: two writers of different entries
cannot lose each other's. A new kind of entry is a row of `KEYS` and nothing else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Lifetime = Literal["vector", "measured", "points", "collection", "work"]
"""How long an entry stays.

- ``vector``: until its vector is removed.
- ``measured``: until its vector is removed; it is measured again as `care_qdrant.qdrant.measurements` says.
- ``points``: as long as the points.
- ``collection``: as long as this very collection; a copy does not get it.
- ``work``: until the work that wrote it has ended, also by another run of it; a copy does not get it.
"""


@dataclass(frozen=True, slots=True)
class Key:
    """A kind of entry: one for the collection, or one for each subject, whose name follows the key after a colon."""

    name: str
    lifetime: Lifetime
    about: str
    """Subject of one entry."""
    holds: str
    written_by: str
    read_by: str

    def of(self, subject: str | None = None) -> str:
        """Return the key of an entry."""
        return self.name if subject is None else f"{self.name}:{subject}"

    def find(self, metadata: Mapping[str, Any], subject: str | None = None) -> Any:
        """Return an entry; None without one."""
        return metadata.get(self.of(subject))

    def all(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries by their subjects."""
        prefix = f"{self.name}:"
        return {
            key.removeprefix(prefix): entry
            for key, entry in metadata.items()
            if key.startswith(prefix) and entry is not None
        }

    def change(self, entry: Any, subject: str | None = None) -> dict[str, Any]:
        """Return the change of the metadata that writes an entry, or removes it when it is None."""
        return {self.of(subject): entry}


KEYS = (
    CONTRACT := Key("care", "vector", "vector", "model record: what made it", "ingest, attach, LlamaIndex", "all"),
    LEARNED := Key("care_learned", "vector", "vector", "query encoder learned from it", "learn", "search, ingest"),
    STAND_IN := Key("care_stand_in", "vector", "vector", "encoders that stood in for its model", "ingest", "all"),
    GOOD_MATCH := Key("care_good_match", "measured", "mode:model", "lowest score of a good match", "search", "search"),
    SHARE := Key("care_share", "measured", "model", "share of the dense score in a hybrid search", "search", "search"),
    QUANTIZATION := Key(
        "care_quantization", "measured", "vector", "oversampling that searches need", "ingest, attach", "search, verify"
    ),
    INPUTS := Key("care_inputs", "points", "file", "a file or folder whose documents are stored", "ingest", "ingest"),
    TENANTS := Key("care_tenants", "points", "", "keys of tenants in an embedded database", "ingest, copies", "search"),
    LOAD := Key(
        "care_bulk_load", "points", "", "graph that the end of a first load builds", "ingest", "ingest, search"
    ),
    ACTIVE := Key(
        "care_active", "points", "", "vector and model of the queries, and those before", "switch", "search, detach"
    ),
    IDENTITY := Key("care_id", "collection", "", "random name of this very collection", "all that create", "ingest"),
    VERSION := Key("care_publish", "collection", "", "source, and the version before", "publish", "publish"),
    RUN := Key("care_run", "work", "run", "an ingestion that has begun to write", "ingest", "ingest, search"),
    RUN_MET := Key("care_run_met", "work", "run", "that another run has ended meanwhile", "ingest", "ingest"),
    ATTACH := Key("care_attach", "work", "vector", "an attach that has begun to write", "attach", "all"),
    COPY := Key("care_copy", "work", "", "source of a copy that is not verified yet", "promote, publish", "all"),
)
"""All metadata that this package writes."""


def known(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any, Key, str]]:
    """Return the entries of this package: metadata key, entry, kind and subject (empty for the collection)."""
    kinds = {key.name: key for key in KEYS}
    for key, entry in metadata.items():
        name, _, subject = key.partition(":")
        if name in kinds and entry is not None:
            yield key, entry, kinds[name], subject


def portable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that a copy of the collection gets, including entries of other programs."""
    own = {key for key, _, kind, _ in known(metadata) if kind.lifetime in ("collection", "work")}
    return {key: entry for key, entry in metadata.items() if key not in own}


def of_vector(metadata: Mapping[str, Any], vector_name: str) -> list[str]:
    """Return the keys of the entries to remove with a vector: its records and the measurements made with it."""
    keys = []
    for key, entry, kind, subject in known(metadata):
        made_with = (entry.get("vector"), entry.get("sparse")) if isinstance(entry, Mapping) else ()
        is_measured = kind.lifetime == "measured" and vector_name in made_with
        if is_measured or (kind.about == "vector" and subject == vector_name):
            keys.append(key)
    return keys
