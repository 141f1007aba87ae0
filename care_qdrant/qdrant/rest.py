"""Writes whole points over HTTP, with vectors converted to JSON directly from memory.

qdrant-client converts every vector to a list of Python floats and writes each with the digits of a double: 1.7 times
the bytes, and four times the CPU time. Other calls stay with the client.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from pydantic_core import to_jsonable_python
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException

_OPTIONS = (
    orjson.OPT_SERIALIZE_NUMPY
    | orjson.OPT_NON_STR_KEYS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


class _Written(models.PointsList):
    """Points that are already JSON; the client needs nothing else of them."""

    body: bytes

    def model_dump_json(self, **_: Any) -> bytes:  # type: ignore[override]
        """Return the body of the request."""
        return self.body


def upsert(
    client: QdrantClient, name: str, points: Sequence[models.PointStruct], shard_key: models.ShardKey | None = None
) -> models.UpdateResult:
    """Write whole points in one request over HTTP and wait until they can be read."""
    try:
        body = upsert_body(points, shard_key)
    except (
        orjson.JSONEncodeError
    ):  # numbers of more than 64 bits, and other values that the client may be able to write
        return client.upsert(name, with_lists(points), wait=True, shard_key_selector=shard_key)
    written = _Written.model_construct(body=body)
    answer = client.http.points_api.upsert_points(name, wait=True, point_insert_operations=written)
    if answer.result is None:
        raise ResponseHandlingException(ValueError("the server's answer to a write has no result"))
    return answer.result


def upsert_body(points: Sequence[models.PointStruct], shard_key: models.ShardKey | None = None) -> bytes:
    """Return the request of `upsert` as qdrant-client would write it, with the shortest digits of a float32.

    Raises:
        orjson.JSONEncodeError: A payload holds a value that only the client may be able to write.
    """
    rows = [
        {"id": point.id, "vector": point.vector} | ({} if point.payload is None else {"payload": point.payload})
        for point in points
    ]
    whole = {"points": rows} if shard_key is None else {"points": rows, "shard_key": shard_key}
    return orjson.dumps(whole, default=to_jsonable_python, option=_OPTIONS)


def with_lists(points: Sequence[models.PointStruct]) -> list[models.PointStruct]:
    """Return points with lists of numbers in place of rows of `Vectors`, as qdrant-client requires."""
    return [
        models.PointStruct.model_construct(id=point.id, vector=_lists(point.vector), payload=point.payload)
        for point in points
    ]


def _lists(vector: models.VectorStruct) -> models.VectorStruct:
    if not isinstance(vector, dict):
        return vector
    return {name: row.tolist() if isinstance(row, np.ndarray) else row for name, row in vector.items()}
