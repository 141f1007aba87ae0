"""Removes what `care_qdrant.vectors.attach` added: the vector, our hashes in the payloads, and all records of it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract, contract_metadata
from care_qdrant.contracts.metadata import of_vector
from care_qdrant.contracts.payload import stored_hash
from care_qdrant.errors import FingerprintMismatch, InputError, counted
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import tune_embedded
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.readable import PointId
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.types import CARE_KEY
from care_qdrant.vectors.points import is_key_of_others

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DetachReport:
    """Vector and payload keys that were removed."""

    collection: str
    vector_name: str
    points: int
    payloads_cleaned: int


@accepts_client
def detach_vector(collection: Collection, vector_name: str | None = None) -> DetachReport:
    """Remove a vector that was attached; the other vectors and the user's payload stay as they are.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        vector_name: Name of the vector; None takes the attached one if there is exactly one.

    Raises:
        InputError: The vector was not attached, or points that were written after it have no other vector.
        FingerprintMismatch: Another attach or ingestion has made it again meanwhile; it stays.
        QdrantError: Qdrant refused or could not be reached.
    """
    target = collection.whole()
    return _remove(target, _checked_name(target.schema, vector_name))


def remove_vector(collection: Collection, vector_name: str, check: Callable[[], object]) -> DetachReport:
    """Remove a vector that this package wrote, by attach or by ingestion, like `detach_vector`.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        vector_name: Name of the vector.
        check: Called immediately before the removal, which does not happen if it raises an error.

    Raises:
        InputError: Another tool wrote the vector, or points have no other one.
        FingerprintMismatch: Another attach or ingestion has made it again meanwhile; it stays.
        QdrantError: Qdrant refused or could not be reached.
    """
    target = collection.whole()
    if vector_name not in target.schema.contracts:
        name = repr(vector_name) if vector_name else "(unnamed)"
        how = (
            f"DELETE /collections/{target.name}/vectors/{vector_name} of Qdrant's API removes it"
            if vector_name
            else "Qdrant has no call that removes the unnamed vector; only a new collection is without it"
        )
        raise InputError(f"another tool wrote vector {name} of collection {target.name!r}, so it stays. {how}")
    return _remove(target, vector_name, check)


def _remove(target: Collection, name: str, check: Callable[[], object] = lambda: None) -> DetachReport:
    schema, points = target.schema, target.count()
    is_there = _is_as_attached(schema, name)

    def require_same(*, is_removed: bool = False) -> None:
        now = target.refresh()
        if now.contracts.get(name) != schema.contracts[name] or (is_removed and now.has_vector(name)):
            raise FingerprintMismatch(
                f"vector {name!r} of collection {target.name!r} was replaced while this run removed it, so it stays; "
                f"see what made it with care status {target.name}"
            )
        if now.active is not None and now.active.now.vector == name:
            raise InputError(
                f"readers of collection {now.name!r} were switched to vector {name!r} at {now.active.since}; first "
                f"return to the one before: care switch {now.name} --roll-back"
            )

    def check_all() -> None:
        require_same()
        _require_other_vectors(target, name)
        check()

    require_same()
    target.require_changeable()  # a key for the points alone could not remove the records in the end
    tune_embedded(target.client, target.name)
    # The vector before the hashes: in the minutes that those take, other programs could write points that it alone
    # finds. The records last: with them, the same command finishes a run that was killed.
    if is_there:
        target.remove_vector(name, check_all)
    cleaned = sum(_clean_payloads(part, name) for part in target.parts())
    require_same(is_removed=is_there)
    target.update("removing what was recorded of the vector", metadata=_without_records(target.schema, name))
    return DetachReport(target.name, name, points, cleaned)


def _without_records(schema: CollectionSchema, vector_name: str) -> dict[str, Any]:
    """Return the metadata update that removes the records of a vector.

    The first of the vectors that were attached next to it takes its place for readers that name no vector.
    """
    change: dict[str, Any] = dict.fromkeys(of_vector(schema.metadata, vector_name))
    first: str | None = None
    for name, made in schema.contracts.items():
        if isinstance(made, VectorContract | SparseContract) and made.beside == vector_name:
            change |= contract_metadata(name, replace(made, beside=first))
            first = first or name
    return change


def _checked_name(schema: CollectionSchema, vector_name: str | None) -> str:
    attached = schema.attached
    there = ", ".join(attached) or "none"
    if vector_name is None and not attached:
        own = ", ".join(name or "(unnamed)" for name in [*schema.dense, *schema.sparse])
        raise InputError(
            f"collection {schema.name!r} has no attached vector: care detach removes only what care attach added, and "
            f"these vectors came with the points: {own}. To remove points, delete them from the corpus and run "
            "care ingest --sync; to remove all of it, delete the collection"
        )
    if vector_name is None:
        if len(attached) != 1:
            raise InputError(f"collection {schema.name!r}: attached vectors are: {there}; give --vector-name, or --all")
        [vector_name] = attached
    if vector_name not in attached:
        raise InputError(
            f"vector {vector_name!r} of collection {schema.name!r} was not attached (attached: {there}); "
            "detach removes nothing else"
        )
    if {*schema.dense, *schema.sparse} == {vector_name}:
        raise InputError(
            f"vector {vector_name!r} is the only one of collection {schema.name!r}; without it no point could be "
            "found. Delete the collection if that is what you want"
        )
    return vector_name


def _is_as_attached(schema: CollectionSchema, vector_name: str) -> bool:
    """Return whether a vector exists as an attach created it, rather than one of its name by another program."""
    made, params = schema.contracts[vector_name], schema.dense.get(vector_name)
    if not isinstance(made, VectorContract) or params is None:
        return isinstance(made, SparseContract) and vector_name in schema.sparse
    if (params.size, params.distance) != (made.dim, made.qdrant_distance):
        logger.warning(
            "collection %r: vector %r has %d dimensions and distance %s, and care attach made it with %d and %s: "
            "another program has recreated it, so it stays, and its records are removed",
            *(schema.name, vector_name, params.size, params.distance.value, made.dim, made.distance),
        )
        return False
    return True


def _require_other_vectors(collection: Collection, vector_name: str) -> None:
    """Refuse to leave a point without any vector, except where it had none before the attach."""
    others = sorted({*collection.schema.dense, *collection.schema.sparse} - {vector_name})
    none_of_them: list[models.Condition] = [models.HasVectorCondition(has_vector=other) for other in others]
    is_expressible = len(others) < collection.limits.conditions
    with_it = models.Filter(
        must=[models.HasVectorCondition(has_vector=vector_name)], must_not=none_of_them if is_expressible else None
    )
    pages = collection.scroll(
        "looking for other vectors", where=with_it, payload=[CARE_KEY], vectors=False if is_expressible else others
    )
    count = sum(
        not vectors_of(record) and not _is_by_attach(record.payload or {}, vector_name)
        for page in pages
        for record in page
    )
    if count == 0:
        return
    raise InputError(
        f"{counted(count, 'point')} of collection {collection.name!r} have no vector but {vector_name!r}, so no search "
        "would find them without it; they were written after it was attached. Let the program that makes "
        f"{' or '.join(repr(other) if other else 'the unnamed vector' for other in others)} write them, or delete them"
    )


def _is_by_attach(payload: Mapping[str, Any], vector_name: str) -> bool:
    """Return whether attach made the vector of a point that another program wrote; ingestion also stores the chunk."""
    return stored_hash(payload, vector_name) is not None and payload[CARE_KEY].keys() == {"vectors"}


def _clean_payloads(collection: Collection, vector_name: str) -> int:
    """Remove our hash of the vector, and our key if it holds nothing else; return the number of points changed."""
    cleaned = 0
    for records in collection.scroll(payload=[CARE_KEY]):
        whole: list[PointId] = []
        partial: list[PointId] = []
        for record in records:
            payload = record.payload or {}
            if CARE_KEY not in payload or is_key_of_others(payload):
                continue
            care = payload[CARE_KEY]
            if care.keys() == {"vectors"} and care["vectors"].keys() <= {vector_name}:
                whole.append(record.id)
            elif stored_hash(payload, vector_name) is not None:
                partial.append(record.id)
        collection.delete_payload_key(whole, CARE_KEY)
        collection.delete_payload_key(partial, f'{CARE_KEY}.vectors."{vector_name}"')
        cleaned += len(whole) + len(partial)
    return cleaned
