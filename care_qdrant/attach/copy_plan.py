"""What attaching by a copy would do, for a person to read before it starts."""

from collections.abc import Iterator
from dataclasses import dataclass

from qdrant_client import models

from care_qdrant.errors import InputError
from care_qdrant.publishing.versions import read_versions
from care_qdrant.store.contracts import VectorContract, collection_names, dense_vectors
from care_qdrant.store.points import count_points
from care_qdrant.store.retry import Collection
from care_qdrant.store.schema import aliases, resolve

BYTES_PER_NUMBER = {models.Datatype.FLOAT16: 2, models.Datatype.UINT8: 1}
"""Of a stored vector, where it is not the 4 of float32."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A copy with one more vector, and the alias that will lead to it."""

    source: str
    alias: str
    version: str
    """The collection to make, or the unfinished one to go on with."""
    replaces: str
    """Where the alias points until the switch, or would have pointed."""
    is_new_alias: bool
    """Nobody searches the alias yet."""
    vector_name: str
    points: int
    copied_bytes: int
    """Of the dense vectors that the server holds twice until somebody deletes the source; payloads come on top."""
    new_bytes: int
    """Of the new vectors, in float32 and without an index."""

    def lines(self) -> Iterator[str]:
        """Say it in plain words."""
        yield (
            f"collection {self.version!r} gets the {self.points:,} points of {self.source!r}, with all they hold "
            f"({self.copied_bytes / 1e6:,.1f} MB of vectors and the payloads a second time), and vector "
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
            f"stop it and run it again as you like; before the switch, care detach {self.version} takes the copy away; "
            f"after it, care publish {self.alias} --rollback goes back to {self.replaces!r}, which stays as it is"
        )


def plan_copy(link: Collection, alias: str | None, vector_name: str, contract: VectorContract) -> CopyPlan:
    """Say what a copy would be; nothing is written.

    Args:
        link: The collection, or an alias of it.
        alias: What readers search afterwards; None takes the link's, which then must be an alias.
        vector_name: To be added.
        contract: Of the model that makes it.

    Raises:
        InputError: there is no such collection, the alias has the name of one, or another alias leads to it.
    """
    client, given = link.client, link.collection
    source = link.call("looking it up", lambda: resolve(client, given))
    alias = alias or (given if given != source else None)
    if alias is None or alias in link.call("reading the collections", lambda: collection_names(client)):
        raise InputError(
            f"{alias or given!r} is a collection, and Qdrant lets no alias have the name of one. Choose another name, "
            "which readers then search, with the same --model and --path/--url: "
            f"care attach {given} --via copy --as {given}-live"
        )
    origin = Collection(client, source, link.policy)
    leading = link.call("reading the aliases", lambda: aliases(client))
    others = sorted(name for name, behind in leading.items() if behind == source and name != alias)
    if others:
        raise InputError(
            f"alias {others[0]!r} leads to collection {source!r}, too: its readers would stay there, and see no more "
            f"of what is written to {alias!r}. Name it (care attach {others[0]} --via copy), or take it away before"
        )
    versions, points = read_versions(origin, alias), count_points(origin)
    live = versions.marks.get(versions.live or "")
    if live is not None and (live.source, live.adds) == (source, vector_name):
        raise InputError(
            f"alias {alias!r} leads to {versions.live!r}, a copy of {source!r} with vector {vector_name!r}; keep that "
            f"one up, with the same --model and --path/--url: care attach {alias}"
        )
    dense = link.call("reading its vectors", lambda: dense_vectors(client, source))
    return CopyPlan(
        source=source,
        alias=alias,
        version=versions.name_for(source, vector_name),
        replaces=versions.live or source,
        is_new_alias=versions.live is None,
        vector_name=vector_name,
        points=points,
        copied_bytes=points * sum(map(bytes_per_point, dense.values())),
        new_bytes=points * contract.dim * 4,
    )


def bytes_per_point(params: models.VectorParams) -> int:
    """Give what one vector takes on the server, without index and quantization; of a multivector, one row."""
    return params.size * (BYTES_PER_NUMBER.get(params.datatype, 4) if params.datatype else 4)
