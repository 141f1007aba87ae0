"""The plan of an attach by a copy: the collection to make, the alias to switch, and the bytes that it takes."""

from collections.abc import Iterator
from dataclasses import dataclass

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.errors import InputError, counted, next_command
from care_qdrant.qdrant.aliases import read_versions
from care_qdrant.qdrant.collection import Collection
from care_qdrant.vectors.preflight import bytes_per_point


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A copy with one more vector, and the alias that will point at it."""

    source: str
    alias: str
    version: str
    """The collection to create, or the unfinished one to continue with."""
    replaces: str
    """The collection behind the alias until the switch; the source where there is no such alias yet."""
    is_new_alias: bool
    """Whether the alias is made by the copy: nobody searches it yet."""
    vector_name: str
    points: int
    copied_bytes: int
    """Bytes of the dense vectors that the server holds twice until the source is deleted; payloads come on top."""
    new_bytes: int
    """Bytes of the new vectors, in float32 and without an index."""

    def lines(self) -> Iterator[str]:
        """Describe the plan in sentences."""
        yield (
            f"collection {self.version!r} gets the {counted(self.points, 'point')} of {self.source!r}, with all they "
            f"hold ({self.copied_bytes / 1e6:,.1f} MB of vectors and the payloads a second time), and vector "
            f"{self.vector_name!r} ({self.new_bytes / 1e6:,.1f} MB)"
        )
        yield f"it is compared, counted and searched, and then alias {self.alias!r} is switched to it in one step"
        if self.is_new_alias:
            yield (
                f"a collection's own name cannot become an alias: who reads {self.source!r} goes on reading it, and "
                f"searches {self.alias!r} for the new vector"
            )
        yield (
            f"what is written to {self.source!r} meanwhile is copied by further passes, until one finds no difference; "
            f"what is written to it after that pass is not in {self.version!r}: let writers rest for the switch, and "
            f"then write to {self.alias!r}"
        )
        yield (
            "stop it and run it again as you like; before the switch, take the copy away "
            + next_command(f"care detach {self.version}", model=False)
            + f"; after it, go back to {self.replaces!r}, which stays as it is, "
            + next_command(f"care publish {self.alias} --rollback", model=False)
        )


def plan_copy(collection: Collection, alias: str | None, vector_name: str, contract: VectorContract) -> CopyPlan:
    """Return what a copy would be; nothing is written."""
    given, origin = collection.name, collection.whole()
    source = origin.name
    alias = alias or (given if given != source else None)
    if alias is None or alias in origin.names():
        raise InputError(
            f"{alias or given!r} is a collection, and Qdrant lets no alias have the name of one. Choose another name, "
            "which readers then search, " + next_command(f"care attach {given} --via copy --as {given}-live")
        )
    others = sorted(name for name, behind in origin.aliases().items() if behind == source and name != alias)
    if others:
        raise InputError(
            f"alias {others[0]!r} leads to collection {source!r}, too: its readers would stay there, and see no more "
            f"of what is written to {alias!r}. Name it (care attach {others[0]} --via copy), or take it away before"
        )
    versions, points = read_versions(origin, alias), origin.count()
    live = versions.records.get(versions.live or "")
    if live is not None and (live.source, live.adds) == (source, vector_name):
        raise InputError(
            f"alias {alias!r} leads to {versions.live!r}, a copy of {source!r} with vector {vector_name!r}; keep that "
            "one up, " + next_command(f"care attach {alias}")
        )
    return CopyPlan(
        source=source,
        alias=alias,
        version=versions.name_for(source, vector_name),
        replaces=versions.live or source,
        is_new_alias=versions.live is None,
        vector_name=vector_name,
        points=points,
        copied_bytes=points * sum(map(bytes_per_point, origin.schema.dense.values())),
        new_bytes=points * bytes_per_point(contract.params),
    )
