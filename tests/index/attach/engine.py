"""Qdrant's own engine, in process (qdrant-edge), behind the few methods of a client that attach and its tests use.

It has one collection and no metadata of its own: those are kept here. Points, vectors, payloads, filters and searches
are the engine's.
"""

import threading
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import qdrant_edge as edge
from qdrant_client import models


class EngineClient:
    """Looks like a `QdrantClient` of a server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._shard: Any = None
        self._config: Any = None

    def close(self) -> None:
        if self._shard is not None:
            self._shard.close()

    def info(self) -> Any:
        return SimpleNamespace(version="1.19.0")

    # --- the collection ---------------------------------------------------------------------------------------------

    def create_collection(
        self, name: str, vectors_config: Any, sparse_vectors_config: Any = None, metadata: Any = None
    ) -> None:
        params = SimpleNamespace(vectors=vectors_config, sparse_vectors=sparse_vectors_config, sharding_method=None)
        self._name = name
        self._config = SimpleNamespace(
            params=params,
            metadata=dict(metadata or {}),
            strict_mode_config=None,
            quantization_config=None,
            optimizer_config=None,
        )
        named = isinstance(vectors_config, dict)
        dense = {key: _params(value) for key, value in vectors_config.items()} if named else _params(vectors_config)
        sparse = {key: edge.EdgeSparseVectorParams() for key in sparse_vectors_config or {}}
        config = edge.EdgeConfig(vectors=dense, sparse_vectors=sparse)
        self._shard = edge.EdgeShard.create(str(self._folder), config)

    def get_collections(self) -> Any:
        return SimpleNamespace(collections=[SimpleNamespace(name=self._name)])

    def collection_exists(self, name: str) -> bool:
        return name == self._name

    def get_aliases(self) -> Any:
        return SimpleNamespace(aliases=[])

    def get_collection(self, _name: str) -> Any:
        green = models.CollectionStatus.GREEN
        return SimpleNamespace(
            config=self._config, payload_schema={}, status=green, indexed_vectors_count=0, points_count=0
        )

    def update_collection(self, _name: str, metadata: dict[str, Any]) -> None:
        merged = {**self._config.metadata, **metadata}
        self._config.metadata = {key: value for key, value in merged.items() if value is not None}

    def create_vector_name(self, _collection: str, name: str, config: models.DenseVectorNameConfig) -> None:
        dense = config.dense
        self._update(edge.UpdateOperation.create_dense_vector(name, dense.size, edge.Distance.Cosine))
        vectors = self._config.params.vectors
        named = vectors if isinstance(vectors, dict) else {"": vectors}
        added = models.VectorParams(size=dense.size, distance=dense.distance)
        self._config.params.vectors = {**named, name: added}

    def delete_vector_name(self, _collection: str, name: str) -> None:
        self._update(edge.UpdateOperation.delete_vector_name(name))
        del self._config.params.vectors[name]

    # --- points -----------------------------------------------------------------------------------------------------

    def upsert(self, _collection: str, points: list[models.PointStruct], **_: Any) -> None:
        rows = [edge.Point(_id(point.id), _vectors(point.vector), point.payload or {}) for point in points]
        self._update(edge.UpdateOperation.upsert_points(rows))

    def batch_update_points(self, _collection: str, operations: list[Any], **_: Any) -> list[models.UpdateResult]:
        for operation in operations:
            if isinstance(operation, models.UpdateVectorsOperation):
                rows = [edge.PointVectors(_id(p.id), _vectors(p.vector)) for p in operation.update_vectors.points]
                self._update(edge.UpdateOperation.update_vectors(rows))
            elif isinstance(operation, models.DeletePayloadOperation):
                cut = operation.delete_payload
                self._update(edge.UpdateOperation.delete_payload([_id(each) for each in cut.points], cut.keys))
            else:
                put = operation.set_payload
                ids = [_id(each) for each in put.points]
                self._update(edge.UpdateOperation.set_payload(ids, put.payload, put.key))
        return [_DONE] * len(operations)

    def delete_payload(self, _collection: str, keys: list[str], points: models.Filter, **_: Any) -> Any:
        self._update(edge.UpdateOperation.delete_payload_by_filter(_filter(points), keys))
        return _DONE

    def scroll(self, _collection: str, **asked: Any) -> tuple[list[models.Record], Any]:
        request = edge.ScrollRequest(
            offset=_id(asked.get("offset")),
            limit=asked["limit"],
            filter=_filter(asked.get("scroll_filter")),
            with_payload=bool(asked.get("with_payload")),
            with_vector=bool(asked.get("with_vectors")),
        )
        records, following = self._shard.scroll(request)
        return [_record(each) for each in records], following

    def retrieve(
        self, _collection: str, ids: list[Any], with_payload: bool = True, with_vectors: bool = False, **_: Any
    ) -> list[models.Record]:
        return [_record(each) for each in self._shard.retrieve([_id(i) for i in ids], with_payload, with_vectors)]

    def count(self, _collection: str, count_filter: Any = None, exact: bool = True, *_: Any) -> Any:
        return SimpleNamespace(count=self._shard.count(edge.CountRequest(exact=exact, filter=_filter(count_filter))))

    def query_points(self, _collection: str, query: Any, limit: int, using: str | None = None, **_: Any) -> Any:
        if isinstance(query, models.SampleQuery):
            asked: Any = edge.Sample.Random
        else:
            is_sparse = isinstance(query, models.SparseVector)
            asked = edge.Query.Nearest(
                edge.SparseVector(query.indices, query.values) if is_sparse else query, using=using
            )
        request = edge.QueryRequest(limit=limit, query=asked, with_payload=True)
        hits = self._shard.query(request)
        points = [models.ScoredPoint(id=_plain(h.id), version=0, score=h.score, payload=h.payload) for h in hits]
        return SimpleNamespace(points=points)

    def query_batch_points(
        self, collection: str, requests: list[models.QueryRequest], timeout: int | None = None
    ) -> Any:
        return [self.query_points(collection, each.query, each.limit or 10, each.using) for each in requests]

    def _update(self, operation: Any) -> None:
        with self._lock:
            self._shard.update(operation)


_DONE = models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)
_DISTANCES = {models.Distance.COSINE: edge.Distance.Cosine, models.Distance.DOT: edge.Distance.Dot}


def _params(params: models.VectorParams) -> Any:
    return edge.EdgeVectorParams(size=params.size, distance=_DISTANCES[params.distance])


def _vectors(vectors: Any) -> Any:
    if not isinstance(vectors, dict):
        return vectors
    return {
        name: edge.SparseVector(each.indices, each.values) if isinstance(each, models.SparseVector) else each
        for name, each in vectors.items()
    }


def _record(record: Any) -> models.Record:
    vectors = record.vector
    if isinstance(vectors, dict):
        vectors = {
            name: models.SparseVector(indices=each.indices, values=each.values)
            if isinstance(each, edge.SparseVector)
            else each
            for name, each in vectors.items()
        }
    return models.Record(id=_plain(record.id), payload=record.payload, vector=vectors)


def _filter(condition: models.Filter | None) -> Any:
    if condition is None:
        return None
    return edge.Filter(
        must=[_condition(each) for each in condition.must or []] or None,
        must_not=[_condition(each) for each in condition.must_not or []] or None,
    )


def _condition(condition: Any) -> Any:
    if isinstance(condition, models.HasVectorCondition):
        return edge.HasVectorCondition(condition.has_vector)
    return edge.HasIdCondition({_id(each) for each in condition.has_id})


def _id(identity: Any) -> Any:
    return uuid.UUID(identity) if isinstance(identity, str) else identity


def _plain(identity: Any) -> int | str:
    return identity if isinstance(identity, int) else str(identity)
