"""One more vector for points that are there; nothing else of them changes but our own hash."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc  # type: ignore[import-untyped]
from qdrant_client import models
from qdrant_client.http.exceptions import UnexpectedResponse

from care_qdrant.store.payload import CARE_KEY
from care_qdrant.store.retry import Collection

HASHES = f"{CARE_KEY}.vectors"


@dataclass(frozen=True, slots=True)
class Addition:
    """Points with the vector to add, by its name, and as payload the hash of its text under the same name.

    Others may delete points in the meantime: those stay deleted. Points that others replace lose our hash with
    our vector, and the next run encodes them again.
    """

    points: Sequence[models.PointStruct]

    def __len__(self) -> int:
        return len(self.points)

    def part(self, start: int, end: int) -> "Addition":
        """Give some of the points."""
        return Addition(self.points[start:end])

    def send(self, link: Collection) -> list[models.UpdateResult]:
        """Write the vectors and then the hashes that vouch for them."""
        points = list(self.points)
        while points:
            try:
                return link.client.batch_update_points(link.collection, _operations(points), wait=True)
            except (UnexpectedResponse, grpc.RpcError, KeyError) as error:
                left = _still_there(link, points)
                if len(left) == len(points):
                    raise error
                points = left
        return []


def _operations(points: Sequence[models.PointStruct]) -> list[models.UpdateOperation]:
    vectors = [models.PointVectors(id=point.id, vector=point.vector) for point in points]
    hashes = (models.SetPayload(payload=point.payload or {}, key=HASHES, points=[point.id]) for point in points)
    return [
        models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=vectors)),
        *(models.SetPayloadOperation(set_payload=each) for each in hashes),
    ]


def _still_there(link: Collection, points: Sequence[models.PointStruct]) -> list[models.PointStruct]:
    ids = [point.id for point in points]
    there = {record.id for record in link.client.retrieve(link.collection, ids, with_payload=False)}
    return [point for point in points if point.id in there]
