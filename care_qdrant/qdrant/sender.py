"""Writes points from a few threads behind a bounded queue, so that the encoder never waits for the network.

Other clients may write the same points at the same time. Where the server compares before it writes, a point is claimed
first: a token of this very write replaces the hashes of its vectors, unless the point has changed meanwhile. Vectors
and payload are written where the token is still in place. So the last claim writes both, and no point has the hash of
another text than its vector, regardless of the order in which the operations of two writers arrive.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Self

from qdrant_client import models
from qdrant_client.local.payload_filters import check_filter

from care_qdrant.errors import QdrantError, Rejected, counted
from care_qdrant.qdrant.calls import in_requests
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.readable import PointId
from care_qdrant.qdrant.rest import with_lists
from care_qdrant.qdrant.retry import RequestTooLarge, is_collection_gone, is_not_found
from care_qdrant.types import CARE_KEY

MAX_BYTES = 5_000_000
"""Largest estimated size of a request. Servers refuse 32 MB, and a smaller request is repeated sooner."""
THREADS = 4
QUEUE = 8
"""Largest number of requests that wait or are in progress; with `MAX_BYTES` it bounds the memory."""

_REPLICA_ATTEMPTS = 5
"""Attempts to change points that one of their replicas lacks."""

JSON_BYTES_PER_NUMBER = 21
"""Estimated size of one component of a vector as JSON."""


Kind = Literal["insert", "update", "attach"]
"""``insert``: whole points that the collection does not have. ``update``: named vectors and the whole payload of
existing points; their other vectors stay. ``attach``: named vectors, and as payload only the hashes of their texts."""


@dataclass(frozen=True, slots=True)
class Write:
    """Points of one kind of request; safe to send again."""

    points: Sequence[models.PointStruct]
    kind: Kind = "insert"
    names: tuple[str, ...] = ()
    """Names of the vectors whose hashes the payloads hold; empty if these are the vectors that are written."""
    unchanged: Mapping[PointId, Sequence[models.Condition]] = field(default_factory=dict)
    """Conditions that a point still has to meet, by its id: it has the text from which its vector was made."""

    def __len__(self) -> int:
        return len(self.points)

    def send(self, collection: Collection) -> None:
        """Write the points. A point that another client deletes while a vector is attached to it stays deleted."""
        if self.kind == "insert":
            collection.upsert(self.points)
            return
        with collection.alone():
            self._send_changes(collection)

    def _send_changes(self, collection: Collection) -> None:
        points = self._comparable(collection) if collection.is_embedded else self.points
        refused = 0
        while points:
            write = replace(self, points=points)
            operations = write._claiming() if collection.compares_writes else _operations(points, self.kind)
            try:
                collection.apply(f"writing {counted(len(points), 'point')}", operations)
                return
            except Rejected as error:
                if self.kind != "attach":
                    raise
                # The request names ids, so it fails where one has been deleted.
                there = collection.retrieve([point.id for point in points], payload=False)
                if len(there) == len(points):
                    # The replica that answered has the point, and another replica will get it soon.
                    refused += 1
                    if not is_not_found(error) or refused > _REPLICA_ATTEMPTS:
                        raise
                    time.sleep(collection.policy.delay(refused))
                points = [point for point in points if point.id in there]

    def _comparable(self, collection: Collection) -> Sequence[models.PointStruct]:
        """Return the points that still meet their conditions, which an embedded database cannot check as it writes."""
        if not self.unchanged:
            return self.points
        there = collection.retrieve([point.id for point in self.points])
        return [
            point
            for point in self.points
            if point.id in there
            and check_filter(
                models.Filter(must=list(self.unchanged.get(point.id, ()))), there[point.id].payload or {}, point.id, {}
            )
        ]

    def _claiming(self) -> list[models.UpdateOperation]:
        """Return the operations that claim the points and write vectors and payloads of the claimed ones."""
        vectors = _vectors(self.points)
        names = self.names or tuple(_names(self.points))
        token = f"writing {uuid.uuid4().hex}"
        claim = models.SetPayload(
            payload=dict.fromkeys(names, token),
            key=f"{CARE_KEY}.vectors",
            filter=models.Filter(should=[self._as_compared(point, names) for point in self.points]),
        )
        is_claimed: list[models.Condition] = [_has_hash(name, token) for name in names]
        operations: list[models.UpdateOperation] = [models.SetPayloadOperation(set_payload=claim)]
        if vectors:
            update = models.UpdateVectors(points=vectors, update_filter=models.Filter(must=is_claimed))
            operations.append(models.UpdateVectorsOperation(update_vectors=update))
        for name, ids in _emptied(self.points).items():
            # Each id by itself: strict mode may limit the size of a condition.
            where = models.Filter(must=is_claimed, should=[models.HasIdCondition(has_id=[id_]) for id_ in ids])
            operations.append(_vector_removal(models.DeleteVectors(vector=[name], filter=where)))
        for point in self.points:
            own = models.Filter(must=[models.HasIdCondition(has_id=[point.id]), *is_claimed])
            operations.append(_payload_operation(point, self.kind, models.SetPayload(payload={}, filter=own)))
        return operations

    def _as_compared(self, point: models.PointStruct, names: Sequence[str]) -> models.Filter:
        """Return a filter for a point with the text, and the hashes of vectors that stay, of when it was compared."""
        written = point.vector if isinstance(point.vector, dict) else {}
        # The payload of an attach is only the hashes, and the vector of each hash is written.
        care = (point.payload or {}).get(CARE_KEY) if self.kind == "update" else None
        hashes = care["vectors"] if care else {}
        kept = [_has_hash(name, hashes[name]) for name in names if name not in written and name in hashes]
        return models.Filter(must=[models.HasIdCondition(has_id=[point.id]), *kept, *self.unchanged.get(point.id, ())])


def _operations(points: Sequence[models.PointStruct], kind: Kind) -> list[models.UpdateOperation]:
    """Return the operations that remove the vectors' hashes, write the vectors, and then payloads with new hashes.

    A run may end between any two of them: a point never has the hash of another text than its vector.
    """
    operations: list[models.UpdateOperation] = [hash_removal(points)] if _names(points) else []
    if vectors := _vectors(points):
        operations.append(models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=vectors)))
    for name, ids in _emptied(points).items():
        operations.append(_vector_removal(models.DeleteVectors(vector=[name], points=ids)))
    for point in points:
        operations.append(_payload_operation(point, kind, models.SetPayload(payload={}, points=[point.id])))
    return operations


def _payload_operation(
    point: models.PointStruct, kind: Kind, selection: models.SetPayload
) -> models.OverwritePayloadOperation | models.SetPayloadOperation:
    """Return the operation that writes the payload of a point to the points that are selected."""
    selection.payload = point.payload or {}
    if kind == "update":
        return models.OverwritePayloadOperation(overwrite_payload=selection)
    selection.key = f"{CARE_KEY}.vectors"
    return models.SetPayloadOperation(set_payload=selection)


def _vectors(points: Sequence[models.PointStruct]) -> list[models.PointVectors]:
    """Return the vectors to write; points with empty vectors alone are left out, since a server refuses them."""
    named = ((point.id, point.vector) for point in with_lists(points) if isinstance(point.vector, dict))
    kept = ((id_, {name: value for name, value in vector.items() if not _is_empty(value)}) for id_, vector in named)
    return [models.PointVectors(id=id_, vector=vector) for id_, vector in kept if vector]


def _emptied(points: Sequence[models.PointStruct]) -> dict[str, list[PointId]]:
    """Return the points whose sparse vector becomes empty, by its name."""
    emptied: dict[str, list[PointId]] = {}
    for point in points:
        for name, vector in point.vector.items() if isinstance(point.vector, dict) else ():
            if _is_empty(vector):
                emptied.setdefault(name, []).append(point.id)
    return emptied


def _is_empty(vector: Any) -> bool:
    return isinstance(vector, models.SparseVector) and not vector.indices


def _vector_removal(selection: models.DeleteVectors) -> models.DeleteVectorsOperation:
    return models.DeleteVectorsOperation(delete_vectors=selection)


def _names(points: Sequence[models.PointStruct]) -> list[str]:
    return sorted({name for point in points for name in (point.vector if isinstance(point.vector, dict) else ())})


def _hash_path(name: str) -> str:
    return f'{CARE_KEY}.vectors."{name}"'


def _has_hash(name: str, value: str) -> models.FieldCondition:
    return models.FieldCondition(key=_hash_path(name), match=models.MatchValue(value=value))


def hash_removal(points: Sequence[models.PointStruct]) -> models.DeletePayloadOperation:
    """Return the operation that removes the hashes of vectors that are about to be replaced.

    Without it, a point whose writer was killed would keep the hash of its former text next to the vector of the new
    text, and count as unchanged when the former text comes back.
    """
    keys, ids = [_hash_path(name) for name in _names(points)], [point.id for point in points if point.vector]
    return models.DeletePayloadOperation(delete_payload=models.DeletePayload(keys=keys, points=ids))


class Sender:
    """Sends writes in the background; use it in a ``with`` block.

    Leaving the block waits for everything that was submitted. The first failure stops the others and is raised by the
    next `submit`, or at the end of the block. A `QdrantError` that the block itself raises gets the same advice.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._executor = ThreadPoolExecutor(1 if collection.is_embedded else THREADS, "sender")
        self._room = threading.BoundedSemaphore(QUEUE)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._is_told = False
        self.stored = 0
        """Points that Qdrant has acknowledged as written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._fail(error)
        self._executor.shutdown(wait=True)
        if error is None or (isinstance(error, QdrantError) and not self._is_told):
            self._raise_failure()

    def submit(self, make: Callable[[], Iterable[Write]], place: Collection | None = None) -> None:
        """Queue the writes that ``make`` returns; it is called in the background. Waits while the queue is full."""
        self._room.acquire()
        if self._failure is not None:
            self._executor.shutdown(wait=True)
            self._raise_failure()
        self._executor.submit(self._send, make, place or self._collection).add_done_callback(
            lambda _: self._room.release()
        )

    def _send(self, make: Callable[[], Iterable[Write]], place: Collection) -> None:
        try:
            for write in make():
                if self._failure is None:
                    send_all(place, write, self._count)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._collection.stop()

    def _count(self, points: int) -> None:
        with self._lock:
            self.stored += points

    def _raise_failure(self) -> None:
        """Raise the first failure; a failure of Qdrant says what is stored and how to continue."""
        self._is_told = True
        if isinstance(self._failure, QdrantError):
            kind = type(self._failure)
            advice = f"this run stored {counted(self.stored, 'point')}; run the same command again to go on"
            if is_collection_gone(self._failure):
                advice = (
                    "It was deleted while this run wrote to it, with all that was stored; run the same command again"
                )
            raise kind(f"{self._failure}. {advice}") from self._failure
        if self._failure is not None:
            raise self._failure


def by_size(write: Write, dim: int, max_points: int) -> Iterator[Write]:
    """Cut a write into requests of at most ``max_points`` points and about `MAX_BYTES`."""
    start, size = 0, 0
    for index, point in enumerate(write.points):
        # LlamaIndex's node repeats the text and the metadata of the payload.
        node = str((point.payload or {}).get("_node_content", ""))
        cost = dim * JSON_BYTES_PER_NUMBER + 2 * len(node.encode()) + 1_000
        if index > start and (index - start == max_points or size + cost > MAX_BYTES):
            yield replace(write, points=write.points[start:index])
            start, size = index, 0
        size += cost
    if start < len(write):
        yield replace(write, points=write.points[start:])


def send_all(collection: Collection, write: Write, acknowledge: Callable[[int], None] = lambda _: None) -> None:
    """Send a write, in halves where the server finds it too large; ``acknowledge`` gets the points of each request."""

    def send(points: Sequence[models.PointStruct]) -> None:
        try:
            replace(write, points=points).send(collection)
        except RequestTooLarge as error:
            if len(points) > 1:
                raise
            raise Rejected(
                f"document {(points[0].payload or {}).get('doc_id')!r} makes a request that the server finds too large "
                f"({error}); shorten its metadata, or raise service.max_request_size_mb of the server"
            ) from error
        acknowledge(len(points))

    for _ in in_requests(write.points, max(1, len(write)), send):
        pass
