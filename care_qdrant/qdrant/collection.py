"""`Collection`: one collection of one Qdrant. Only this class and its bases call the client on points."""

from collections.abc import Callable, Sequence
from functools import partial

from qdrant_client import models

from care_qdrant.errors import InputError, counted, next_command
from care_qdrant.qdrant import rest
from care_qdrant.qdrant.calls import Written, in_requests
from care_qdrant.qdrant.filters import require_finite
from care_qdrant.qdrant.readable import PointId, ReadableCollection


class Collection(ReadableCollection):
    """One collection of one Qdrant, reached with retries; may be used from several threads.

    The schema is read once and kept: pure checks (`care_qdrant.qdrant.checks`) share it. `refresh` reads it
    again, and so does the next use after this object has changed it.

    Every method that calls Qdrant raises:
        ServerTooOld: The server is older than version 1.18.
        Unreachable: The patience of the policy is used up.
        Rejected: Qdrant says that the request is wrong.
    """

    # Changing points. Missing points are skipped: other clients may delete points at any time, and a request that
    # names the id of a deleted point would fail as a whole, while a condition on the id does not.

    def upsert(self, points: Sequence[models.PointStruct]) -> None:
        """Write whole points in one request; existing ones are replaced completely.

        A named vector may be a row of `Vectors` instead of a list of numbers.

        Raises:
            RequestTooLarge: The server takes no request of this size.
        """

        def write() -> models.UpdateResult:
            if self.is_embedded or getattr(self.client, "init_options", {}).get("prefer_grpc"):
                plain = rest.with_lists(points)
                return self.client.upsert(self.name, plain, wait=True, shard_key_selector=self.shard_key)
            return rest.upsert(self.client, self.name, points, self.shard_key)

        self.write(f"writing {counted(len(points), 'point')}", write)

    def apply(self, what: str, operations: Sequence[models.UpdateOperation]) -> None:
        """Apply several operations in one request and in order.

        Raises:
            RequestTooLarge: The server takes no request of this size.
        """
        operations = [self._with_shard_key(operation) for operation in operations]
        self.write(what, lambda: self.client.batch_update_points(self.name, operations, wait=True))

    def delete(self, ids: Sequence[PointId]) -> None:
        """Delete points by id."""

        def delete(page: Sequence[PointId]) -> models.UpdateResult:
            selector = models.PointIdsList(points=list(page))
            return self.client.delete(self.name, selector, wait=True, shard_key_selector=self.shard_key)

        self._write_pages("deleting points", ids, self.limits.page, delete)

    def delete_where(self, where: models.Filter) -> None:
        """Delete the points that pass a filter.

        Raises:
            InputError: It holds NaN or an infinite number, without which more points would pass.
        """
        require_finite(where)
        selector = models.FilterSelector(filter=where)
        delete = partial(self.client.delete, self.name, selector, wait=True, shard_key_selector=self.shard_key)
        self.write("deleting points", delete)

    def delete_vector_of(self, ids: Sequence[PointId], vector_name: str) -> None:
        """Remove a vector from points; it stays in the schema."""
        delete = partial(self.client.delete_vectors, self.name, [vector_name], shard_key_selector=self.shard_key)
        self._write_pages("removing vectors", ids, self.limits.ids, lambda page: delete(having_ids(page), wait=True))

    def delete_payload_key(self, ids: Sequence[PointId], key: str) -> None:
        """Remove a payload key, given as a Qdrant path, from points."""
        delete = partial(self.client.delete_payload, self.name, [key], shard_key_selector=self.shard_key)
        self._write_pages("removing hashes", ids, self.limits.ids, lambda page: delete(having_ids(page), wait=True))

    def _write_pages(
        self, what: str, ids: Sequence[PointId], size: int, operation: Callable[[Sequence[PointId]], Written]
    ) -> None:
        """Call a write on pages of ids."""
        list(in_requests(ids, size, lambda page: self.write(what, lambda: operation(page))))

    def _with_shard_key(self, operation: models.UpdateOperation) -> models.UpdateOperation:
        """Return the operation limited to the shards of this collection's key."""
        if self.shard_key is None:
            return operation
        [field] = type(operation).model_fields
        change = getattr(operation, field).model_copy(update={"shard_key": self.shard_key})
        return operation.model_copy(update={field: change})


def having_ids(ids: Sequence[PointId]) -> models.Filter:
    """Return the filter that passes points with these ids."""
    return models.Filter(must=[models.HasIdCondition(has_id=list(ids))])


def only_name(names: Sequence[str], where: str) -> str:
    """Return the only name; refuse none and several, for commands that default to the only collection."""
    if not names:
        raise InputError(f"{where}: no collections yet; make one, " + next_command("care ingest corpus.jsonl"))
    if len(names) > 1:
        raise InputError(f"{where}: several collections ({', '.join(names)}); name one with --collection")
    return names[0]
