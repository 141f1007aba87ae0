"""Takes away what `care_qdrant.attach.attach` added: the vector, our hashes in the payloads, and the contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qdrant_client import QdrantClient, models

from care_qdrant.attach.preflight import NAMED_VECTORS_SINCE
from care_qdrant.attach.stored_texts import read_payloads
from care_qdrant.errors import InputError, ServerTooOld
from care_qdrant.publishing.versions import Mark, read_mark
from care_qdrant.store.attached import ATTACH_KEY
from care_qdrant.store.connection import require_server, tune_embedded
from care_qdrant.store.contracts import METADATA_KEY, dense_vectors, read_metadata, sparse_vectors
from care_qdrant.store.limits import read_limits
from care_qdrant.store.payload import CARE_KEY
from care_qdrant.store.points import count_points
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.store.schema import aliases, resolve


@dataclass(frozen=True, slots=True)
class DetachReport:
    """What was taken away."""

    collection: str
    vector_name: str
    points: int
    payloads_cleaned: int
    deleted_copy: bool = False
    """The collection was an unfinished copy, which nobody has searched yet: all of it is gone."""


def detach(
    client: QdrantClient, collection: str, vector_name: str | None = None, *, retries: RetryPolicy | None = None
) -> DetachReport:
    """Remove a vector that was attached; the other vectors and the user's payload stay as they are.

    The contract goes last, so that a run that was killed is finished by the same command. A copy that
    ``care attach --via copy`` has not finished is deleted as a whole.

    Args:
        client: An open Qdrant.
        collection: Name or alias.
        vector_name: None takes the one that was attached, when there is one.
        retries: How patient to be with a server.

    Raises:
        InputError: the vector was not attached, or it is the only one of the collection.
        ServerTooOld: the server cannot remove a vector; the message says how to go back all the same.
        QdrantError: Qdrant refused or could not be reached.
    """
    alias = Collection(client, collection, retries)
    link = Collection(client, alias.call("looking it up", lambda: resolve(client, collection)), retries)
    mark = read_mark(link, link.collection)
    if mark is not None and mark.adds is not None and vector_name in (None, mark.adds) and _is_unseen(link, mark):
        points = count_points(link)
        link.call("deleting the copy", lambda: client.delete_collection(link.collection))
        return DetachReport(link.collection, mark.adds, points, 0, deleted_copy=True)
    link.call("asking its version", lambda: _require_removal(link, mark))
    name = link.call("reading what was attached", lambda: _checked_name(link, vector_name))
    points = count_points(link)
    tune_embedded(client, link.collection)
    cleaned = _clean_payloads(link, name)
    if name in link.call("reading its vectors", lambda: dense_vectors(client, link.collection)):
        link.call("removing the vector", lambda: client.delete_vector_name(link.collection, name))
    link.call("removing its contract", lambda: _forget(link, name))
    return DetachReport(link.collection, name, points, cleaned)


def _is_unseen(link: Collection, mark: Mark) -> bool:
    """Say whether no alias has ever led to a copy: the switch is what makes it remember what it replaces."""
    leading = link.call("reading the aliases", lambda: aliases(link.client))
    return mark.replaces is None and link.collection not in leading.values()


def _require_removal(link: Collection, mark: Mark | None) -> None:
    try:
        require_server(link.client, NAMED_VECTORS_SINCE, "removing a vector")
    except ServerTooOld as error:
        if mark is None or mark.adds is None:
            raise
        raise ServerTooOld(
            f"{error}. {link.collection!r} is a copy of {mark.source!r} with vector {mark.adds!r}: go back to what its "
            "alias led to with care publish ALIAS --rollback, and delete the copy when nobody reads it any more"
        ) from error


def _checked_name(link: Collection, vector_name: str | None) -> str:
    attached = sorted(read_metadata(link.client, link.collection).get(ATTACH_KEY) or {})
    there = ", ".join(attached) or "none"
    if vector_name is None:
        if len(attached) != 1:
            raise InputError(f"collection {link.collection!r}: attached vectors are: {there}; give --vector-name")
        [vector_name] = attached
    dense = dense_vectors(link.client, link.collection)
    if vector_name not in attached:
        raise InputError(
            f"vector {vector_name!r} of collection {link.collection!r} was not attached (attached: {there}); "
            "detach removes nothing else"
        )
    others = {*dense, *sparse_vectors(link.client, link.collection)} - {vector_name}
    if vector_name in dense and not others:
        raise InputError(
            f"vector {vector_name!r} is the only one of collection {link.collection!r}; without it no point could be "
            "found. Delete the collection if that is what you want"
        )
    return vector_name


def _clean_payloads(link: Collection, vector_name: str) -> int:
    """Remove our hash of the vector; and all of our key, where nothing else is under it."""
    cleaned, size = 0, read_limits(link).write
    for records in read_payloads(link):
        whole: list[models.ExtendedPointId] = []
        one: list[models.ExtendedPointId] = []
        for record in records:
            care = (record.payload or {}).get(CARE_KEY)
            hashes = care.get("vectors") if isinstance(care, dict) else None
            if isinstance(care, dict) and set(care) <= {"vectors"} and set(hashes or {}) <= {vector_name}:
                whole.append(record.id)
            elif isinstance(hashes, dict) and vector_name in hashes:
                one.append(record.id)
        _delete_key(link, CARE_KEY, whole, size)
        _delete_key(link, f'{CARE_KEY}.vectors."{vector_name}"', one, size)
        cleaned += len(whole) + len(one)
    return cleaned


def _delete_key(link: Collection, key: str, ids: Sequence[models.ExtendedPointId], size: int) -> None:
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        link.write("removing hashes", partial(_delete, link, key, part))


def _delete(link: Collection, key: str, ids: list[models.ExtendedPointId]) -> models.UpdateResult:
    # By condition and not by list of ids: an id that somebody deletes meanwhile would fail the request.
    there = models.Filter(must=[models.HasIdCondition(has_id=ids)])
    return link.client.delete_payload(link.collection, [key], there, wait=True)


def _forget(link: Collection, vector_name: str) -> None:
    metadata = read_metadata(link.client, link.collection)
    left: dict[str, Any] = {}
    for key in (METADATA_KEY, ATTACH_KEY):
        entries = {name: entry for name, entry in (metadata.get(key) or {}).items() if name != vector_name}
        # None takes a key out of the metadata.
        left[key] = entries or None
    link.client.update_collection(link.collection, metadata=left)
