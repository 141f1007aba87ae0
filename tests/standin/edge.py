"""An engine for benchmarks of size: points lie on the disk and are searched by Qdrant's own engine (qdrant-edge).

It does what loading, counting and searching one vector take; other routes for points are refused. It builds no graph:
every search is exact.
"""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import qdrant_edge as edge
from pydantic import TypeAdapter
from pydantic_core import from_json
from qdrant_client import models

from tests.standin.engine import Engine

_COLLECTION = re.compile(r"/collections/([^/]+)")
_POINTS = re.compile(r"/collections/([^/]+)/points(|/count|/query|/query/batch)")
_COMPLETED = {"operation_id": 0, "status": "completed"}


class EdgeEngine(Engine):
    """Collections are the stand-in's own; the points of each are a shard of qdrant-edge."""

    def __init__(self, path: str | None, version: str) -> None:
        super().__init__(None, version)
        if path is None:
            raise ValueError("this engine needs a folder")
        self._folder = Path(path)
        self._shards: dict[str, edge.EdgeShard] = {}

    def answer(self, method: str, path: str, body: bytes) -> Any:
        if match := _POINTS.fullmatch(path):
            return self._answer_points(self._shards[match[1]], method, match[2], body)
        if path.count("/points"):
            raise ValueError(f"{method} {path} is not part of this engine")
        result = super().answer(method, path, body)
        if method == "PUT" and (match := _COLLECTION.fullmatch(path)):
            self._shards[match[1]] = _create(self._folder / match[1], body)
        return result

    def _answer_points(self, shard: "edge.EdgeShard", method: str, route: str, body: bytes) -> Any:
        # Parsed without models: a million points of 768 numbers are 15 GB of JSON.
        asked = from_json(body)
        if route == "" and method == "PUT":
            rows = [edge.Point(UUID(p["id"]), _vectors(p["vector"]), p["payload"]) for p in asked["points"]]
            with self.lock:
                shard.update(edge.UpdateOperation.upsert_points(rows))
            return _COMPLETED
        if route == "":
            found = shard.retrieve([UUID(each) for each in asked["ids"]], True, False)
            return [{"id": str(each.id), "payload": each.payload} for each in found]
        if route == "/count":
            counted = edge.CountRequest(exact=True, filter=_filter(asked.get("filter")))
            return {"count": shard.count(counted)}
        if route == "/query":
            return _query(shard, asked)
        return [_query(shard, each) for each in asked["searches"]]


def _create(folder: Path, body: bytes) -> "edge.EdgeShard":
    asked = TypeAdapter(models.CreateCollection).validate_json(body)
    dense = asked.vectors if isinstance(asked.vectors, dict) else {}
    vectors = {
        name: edge.EdgeVectorParams(size=each.size, distance=edge.Distance.Cosine, on_disk=True)
        for name, each in dense.items()
    }
    sparse = {
        name: edge.EdgeSparseVectorParams(on_disk=True, modifier=edge.Modifier.Idf)
        for name in asked.sparse_vectors or {}
    }
    folder.mkdir(parents=True)
    config = edge.EdgeConfig(vectors=vectors, sparse_vectors=sparse, on_disk_payload=True, wal_enabled=False)
    return edge.EdgeShard.create(str(folder), config)


def _query(shard: "edge.EdgeShard", asked: dict[str, Any]) -> dict[str, Any]:
    """Answer a search by one vector."""
    if asked.get("prefetch"):
        raise ValueError("prefetches are not part of this engine")
    vector = asked["query"]
    vector = vector.get("nearest", vector) if isinstance(vector, dict) else vector
    request = edge.QueryRequest(
        limit=asked["limit"],
        query=edge.Query.Nearest(_vector(vector), using=asked["using"]),
        with_payload=bool(asked.get("with_payload")),
        filter=_filter(asked.get("filter")),
        params=edge.SearchParams(exact=True),
    )
    points = shard.query(request)
    return {"points": [{"id": str(p.id), "version": 0, "score": p.score, "payload": p.payload} for p in points]}


def _filter(asked: dict[str, Any] | None) -> Any:
    """Read the two conditions that this repository sends: by id, and by having a vector."""
    if not asked:
        return None
    must, must_not = ([_condition(each) for each in asked.get(name) or []] or None for name in ("must", "must_not"))
    return edge.Filter(must=must, must_not=must_not)


def _condition(asked: dict[str, Any]) -> Any:
    if "has_vector" in asked:
        return edge.HasVectorCondition(asked["has_vector"])
    return edge.HasIdCondition({UUID(each) for each in asked["has_id"]})


def _vectors(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: _vector(each) for name, each in asked.items()}


def _vector(asked: Any) -> Any:
    return edge.SparseVector(asked["indices"], asked["values"]) if isinstance(asked, dict) else asked
