"""Snapshots of the stand-in: kept in memory, and fetched by nobody, since source and target are one server."""

import hashlib
from copy import deepcopy
from typing import Any
from urllib.parse import unquote, urlsplit

from qdrant_client import models
from qdrant_client.local.qdrant_local import QdrantLocal

Snapshots = dict[tuple[str, str], tuple[Any, list[models.Record]]]
"""Collection and name → vectors of the schema, and points."""


def create(local: QdrantLocal, snapshots: Snapshots, collection: str) -> dict[str, Any]:
    config = local.get_collection(collection).config.params
    points, _ = local.scroll(collection, limit=1_000_000, with_payload=True, with_vectors=True)
    name = f"{collection}-{len(snapshots)}.snapshot"
    snapshots[collection, name] = (deepcopy(config.vectors), points)
    return _description(name, len(points))


def described(snapshots: Snapshots, collection: str) -> list[dict[str, Any]]:
    return [
        _description(name, len(points)) for (source, name), (_, points) in snapshots.items() if source == collection
    ]


def recover(local: QdrantLocal, snapshots: Snapshots, collection: str, request: models.SnapshotRecover) -> bool:
    *_, source, _, name = unquote(urlsplit(request.location).path).split("/")
    if (source, name) not in snapshots:
        raise ValueError(f"Failed to download snapshot from {request.location}: status - 404 Not Found")
    if request.checksum != _checksum(name):
        raise ValueError("Snapshot checksum mismatch")
    vectors, points = snapshots[source, name]
    if vectors != local.get_collection(collection).config.params.vectors:
        raise ValueError("Snapshot is not compatible with existing collection")
    local.upsert(
        collection, [models.PointStruct(id=each.id, vector=each.vector or {}, payload=each.payload) for each in points]
    )
    return True


def _description(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "creation_time": None, "size": size, "checksum": _checksum(name)}


def _checksum(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
