"""What attaching a vector to a collection would meet: where the texts are, and every reason to refuse."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.database.attached import read_text_path
from care_qdrant.database.collection import (
    VectorContract,
    check_contract,
    dense_vectors,
    read_contracts,
    sparse_vectors,
)
from care_qdrant.database.connection import require_server
from care_qdrant.database.layout import Layout, guess_layout
from care_qdrant.database.limits import read_limits
from care_qdrant.database.payload import CARE_KEY
from care_qdrant.database.retry import Link
from care_qdrant.errors import CareError, FingerprintMismatch, InputError, SchemaMismatch

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


def examine(link: Link, vector_name: str, contract: VectorContract, text_path: str | None) -> Preflight:
    """Look at a collection as an attach would.

    Args:
        link: The collection, not an alias.
        vector_name: To be added, or to be completed.
        contract: Of the model that would make it.
        text_path: Where the user says the text is; None takes what an earlier run took, or guesses.
    """
    vectors = link.call("reading its vectors", lambda: dense_vectors(link.client, link.collection))
    sample = link.call("reading a sample", lambda: _sample(link))
    text_path = text_path or read_text_path(link, vector_name)
    layout, no_layout = _layout(sample, text_path, link.collection)
    checks: list[Callable[[], object]] = [
        lambda: _require_named_vectors(link, vector_name in vectors),
        lambda: _require_free_or_ours(link, vector_name, contract, vectors),
        lambda: _require_free_key(link.collection, sample),
    ]
    problems = [*filter(None, map(_problem, checks)), *no_layout]
    return Preflight(
        points=link.call("counting", lambda: link.client.count(link.collection, exact=True)).count,
        layout=layout,
        sampled=len(sample),
        sampled_without_text=sum(layout is None or layout.find_text(payload) is None for payload in sample),
        has_vector=vector_name in vectors,
        problems=tuple(problems),
        notices=tuple(_notices(vectors, vector_name)),
    )


def _sample(link: Link) -> list[Mapping[str, Any]]:
    limit = min(SAMPLE_POINTS, read_limits(link).page)
    records, _ = link.client.scroll(link.collection, limit=limit, with_payload=True, with_vectors=False)
    return [record.payload or {} for record in records]


def _layout(
    sample: Sequence[Mapping[str, Any]], text_path: str | None, collection: str
) -> tuple[Layout | None, list[CareError]]:
    if not sample:
        return None, [InputError(f"collection {collection!r} has no points yet; fill it, and then attach")]
    try:
        return guess_layout(sample, text_path=text_path), []
    except InputError as error:
        return None, [InputError(f"collection {collection!r}: {error}, with --text-field")]


def _problem(check: Callable[[], object]) -> CareError | None:
    try:
        check()
    except CareError as error:
        return error
    return None


def _require_named_vectors(link: Link, is_there: bool) -> None:
    if is_there:
        return
    feature = f"adding a vector to collection {link.collection!r} while it is in use"
    link.call("asking its version", lambda: require_server(link.client, NAMED_VECTORS_SINCE, feature))


def _require_free_or_ours(
    link: Link, vector_name: str, contract: VectorContract, vectors: Mapping[str, models.VectorParams]
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


def _notices(vectors: Mapping[str, models.VectorParams], vector_name: str) -> Iterator[str]:
    if set(vectors) - {vector_name} == {""} and vector_name not in vectors:
        yield (
            "the collection has an unnamed vector, which stays the one that unnamed searches use; but its "
            "configuration will list two vectors, and tools that read config.params.vectors.size must be told the name"
        )
