"""What attaching a vector to a collection would meet: where the texts are, and every reason to refuse."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.attach.copy_plan import bytes_per_point
from care_qdrant.errors import CareError, FingerprintMismatch, InputError, SchemaMismatch, ServerTooOld
from care_qdrant.publishing.versions import read_mark
from care_qdrant.store.attached import read_text_path
from care_qdrant.store.connection import require_server
from care_qdrant.store.contracts import (
    VectorContract,
    check_contract,
    dense_vectors,
    read_contracts,
    sparse_vectors,
)
from care_qdrant.store.layout import Layout, guess_layout
from care_qdrant.store.limits import read_limits
from care_qdrant.store.payload import CARE_KEY
from care_qdrant.store.points import count_points
from care_qdrant.store.retry import Collection

NAMED_VECTORS_SINCE = (1, 18)
SAMPLE_POINTS = 200


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found, without having written anything."""

    points: int
    layout: Layout | None
    """None where no text was found."""
    sampled: int
    sampled_without_text: int
    has_vector: bool
    """The collection has the vector already, from an earlier run."""
    problems: tuple[CareError, ...]
    """Why attaching is refused; empty where it is not."""
    notices: tuple[str, ...]
    """What the owner of the collection should know before."""


def examine(
    link: Collection, vector_name: str, contract: VectorContract, text_field: str | None, *, in_place: bool = True
) -> Preflight:
    """Look at a collection as an attach would.

    Args:
        link: The collection, not an alias.
        vector_name: To be added, or to be completed.
        contract: Of the model that would make it.
        text_field: Where the user says the text is; None takes what an earlier run took, or guesses.
        in_place: The vector is for this collection; False where it is for a copy of it.
    """
    vectors = link.call("reading its vectors", lambda: dense_vectors(link.client, link.collection))
    sample = link.call("reading a sample", lambda: _sample(link))
    text_field = text_field or read_text_path(link, vector_name)
    layout, no_layout = _layout(sample, text_field, link.collection)
    points = count_points(link)
    has_vector = vector_name in vectors
    checks: list[Callable[[], object]] = [
        lambda: _require_named_vectors(link, has_vector) if in_place else _require_new(link, vector_name, has_vector),
        lambda: _require_free_or_ours(link, vector_name, contract, vectors),
        lambda: _require_free_key(link.collection, sample),
        lambda: _require_room(link, vector_name, contract, vectors, points),
    ]
    problems = [*filter(None, map(_problem, checks)), *no_layout]
    return Preflight(
        points=points,
        layout=layout,
        sampled=len(sample),
        sampled_without_text=sum(layout is None or layout.find_text(payload) is None for payload in sample),
        has_vector=has_vector,
        problems=tuple(problems),
        notices=tuple(_notices(link, vectors, vector_name)),
    )


def _sample(link: Collection) -> list[Mapping[str, Any]]:
    limit = min(SAMPLE_POINTS, read_limits(link).page)
    records, _ = link.client.scroll(link.collection, limit=limit, with_payload=True, with_vectors=False)
    return [record.payload or {} for record in records]


def _layout(
    sample: Sequence[Mapping[str, Any]], text_field: str | None, collection: str
) -> tuple[Layout | None, list[CareError]]:
    if not sample:
        return None, [InputError(f"collection {collection!r} has no points yet; fill it, and then attach")]
    try:
        return guess_layout(sample, text_field=text_field), []
    except InputError as error:
        return None, [InputError(f"collection {collection!r}: {error}, with --text-field")]


def _problem(check: Callable[[], object]) -> CareError | None:
    try:
        check()
    except CareError as error:
        return error
    return None


def _require_named_vectors(link: Collection, is_there: bool) -> None:
    if is_there:
        return
    feature = f"adding a vector to collection {link.collection!r} while it is in use"
    try:
        link.call("asking its version", lambda: require_server(link.client, NAMED_VECTORS_SINCE, feature))
    except ServerTooOld as error:
        raise ServerTooOld(
            f"{error}. Upgrade it, or let a copy with both vectors be made behind an alias, with the same --model and "
            f"--path/--url: care attach {link.collection} --via copy --as {link.collection}-live"
        ) from error


def _require_new(link: Collection, vector_name: str, is_there: bool) -> None:
    if is_there:
        raise InputError(
            f"collection {link.collection!r} has vector {vector_name!r} already, so it needs no copy: "
            f"with the same --model and --path/--url, care attach {link.collection} --vector-name {vector_name}"
        )


def _require_free_or_ours(
    link: Collection, vector_name: str, contract: VectorContract, vectors: Mapping[str, models.VectorParams]
) -> None:
    if not vector_name:
        raise InputError("a vector that is added needs a name: give --vector-name")
    if vector_name in link.call("reading its vectors", lambda: sparse_vectors(link.client, link.collection)):
        raise SchemaMismatch(f"{vector_name!r} is a sparse vector of collection {link.collection!r}; use another name")
    if vector_name in vectors:
        link.call("reading its contract", lambda: check_contract(link.client, link.collection, vector_name, contract))
        return
    begun = link.call("reading its contract", lambda: read_contracts(link.client, link.collection)).get(vector_name)
    if begun is not None and begun.fingerprint != contract.fingerprint:
        raise FingerprintMismatch(
            f"collection {link.collection!r} remembers {vector_name!r} as a vector of another model "
            f"({begun.fingerprint[:12]}); forget it with: care detach {link.collection} --vector-name {vector_name}"
        )


def _require_free_key(collection: str, sample: Sequence[Mapping[str, Any]]) -> None:
    for payload in sample:
        if not isinstance(payload.get(CARE_KEY) or {}, Mapping):
            raise InputError(
                f"collection {collection!r}: payloads have a key {CARE_KEY!r} of their own, under which attach keeps "
                "the hash of each text; rename yours"
            )


def _require_room(
    link: Collection,
    vector_name: str,
    contract: VectorContract,
    vectors: Mapping[str, models.VectorParams],
    points: int,
) -> None:
    """Refuse what strict mode would stop in the middle: a server writes no vector once one of these is reached."""
    strict = link.call("reading its limits", lambda: link.client.get_collection(link.collection)).config
    limits = strict.strict_mode_config
    if limits is None or not limits.enabled:
        return
    where = f"strict mode of collection {link.collection!r} allows"
    if limits.max_points_count is not None and points >= limits.max_points_count:
        raise InputError(
            f"{where} {limits.max_points_count:,} points, and there are {points:,}: the server takes no vectors any "
            "more. Have its operator raise max_points_count"
        )
    with_ours = {**vectors, vector_name: models.VectorParams(size=contract.dim, distance=models.Distance.COSINE)}
    needed = points * sum(map(bytes_per_point, with_ours.values()))
    most = limits.max_collection_vector_size_bytes
    if most is not None and needed > most:
        raise InputError(
            f"{where} {most / 1e6:,.1f} MB of vectors, and with {vector_name!r} there would be about "
            f"{needed / 1e6:,.1f} MB. Have its operator raise max_collection_vector_size_bytes"
        )


def _notices(link: Collection, vectors: Mapping[str, models.VectorParams], vector_name: str) -> Iterator[str]:
    mark = read_mark(link, link.collection)
    if mark is not None and mark.adds is None and not mark.withdrawn:
        yield (
            f"the collection is a version that care publish made of {mark.source!r}, and the next one will not have "
            f"what is added here: attach to {mark.source!r}, and publish it"
        )
    if set(vectors) - {vector_name} == {""} and vector_name not in vectors:
        yield (
            "the collection has an unnamed vector, which stays the one that unnamed searches use; but its "
            "configuration will list two vectors, and tools that read config.params.vectors.size must be told the name"
        )
