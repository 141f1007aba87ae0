"""Whole points over gRPC: a vector goes to the server as the bytes that it is in memory.

qdrant-client makes a list of Python floats of every vector and walks it several times; that takes more CPU time than
all the rest of an ingestion. Other calls stay with the client.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, grpc, models
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc

from care_qdrant.qdrant.connection import REQUEST_TIMEOUT_SECONDS
from care_qdrant.types import Vectors

_DATA_TAG = bytes([grpc.DenseVector.DESCRIPTOR.fields_by_name["data"].number << 3 | 2])
"""Protobuf tag of the packed field ``data``: its number, and wire type 2 (bytes with a length)."""


def upsert(
    client: QdrantClient, name: str, points: Sequence[models.PointStruct], shard_key: models.ShardKey | None = None
) -> models.UpdateResult:
    """Write whole points in one request over gRPC and wait until they can be read."""
    timeout = client.init_options["timeout"] or REQUEST_TIMEOUT_SECONDS
    request = upsert_request(name, points)
    if shard_key is not None:
        request.shard_key_selector.MergeFrom(RestToGrpc.convert_shard_key_selector(shard_key))
    answer = client.grpc_points.Upsert(request, timeout=timeout)
    return GrpcToRest.convert_update_result(answer.result)


def upsert_request(name: str, points: Sequence[models.PointStruct]) -> grpc.UpsertPoints:
    """Build the request of `upsert`; equal to what qdrant-client makes of the same points with lists."""
    request = grpc.UpsertPoints(collection_name=name, wait=True)
    for point in points:
        named: dict[str, Any] = point.vector if isinstance(point.vector, dict) else {}
        rows = {key: vector for key, vector in named.items() if isinstance(vector, np.ndarray)}
        if not rows:
            request.points.append(RestToGrpc.convert_point_struct(point))
            continue
        message = request.points.add()
        if isinstance(point.id, str):
            message.id.uuid = point.id
        else:
            message.id.MergeFrom(RestToGrpc.convert_extended_point_id(point.id))
        _fill(message.payload, point.payload or {})
        if others := {key: vector for key, vector in named.items() if key not in rows}:
            message.vectors.MergeFrom(RestToGrpc.convert_vector_struct(others))
        for key, row in rows.items():
            message.vectors.vectors.vectors[key].dense.MergeFromString(_packed(row))
    return request


def _fill(fields: Any, payload: Mapping[str, Any]) -> None:
    """Write a payload into the map of a message, in half the time of the client, which builds it beside the message."""
    for key, value in payload.items():
        kind = type(value)
        if kind is str:
            fields[key].string_value = value
        elif kind is int:
            fields[key].integer_value = value
        elif kind is dict:
            inner = fields[key].struct_value
            inner.SetInParent()  # also where it is empty
            _fill(inner.fields, value)
        else:
            converted = grpc.PointStruct(payload=RestToGrpc.convert_payload({key: value}))
            fields[key].CopyFrom(converted.payload[key])


def with_lists(points: Sequence[models.PointStruct]) -> list[models.PointStruct]:
    """Return points with lists of numbers in place of rows of `Vectors`, as qdrant-client takes them."""
    return [
        models.PointStruct.model_construct(id=point.id, vector=_lists(point.vector), payload=point.payload)
        for point in points
    ]


def _lists(vector: models.VectorStruct) -> models.VectorStruct:
    if not isinstance(vector, dict):
        return vector
    return {key: each.tolist() if isinstance(each, np.ndarray) else each for key, each in vector.items()}


def _packed(row: Vectors) -> bytes:
    """Return a `DenseVector` message: tag, length in bytes, little-endian float32."""
    data = row.astype("<f4", copy=False).tobytes()
    return _DATA_TAG + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number in protobuf's encoding, seven bits a byte, the lowest first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
