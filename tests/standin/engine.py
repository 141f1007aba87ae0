"""REST routes of Qdrant on top of qdrant-client's local mode."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from qdrant_client import models
from qdrant_client.local.qdrant_local import QdrantLocal

from tests.standin import snapshots
from tests.standin.strict import StrictMode

T = TypeVar("T")
Handler = Callable[["Call"], Any]

COMPLETED = {"operation_id": 0, "status": "completed"}
COLLECTION_SETTINGS = ("hnsw_config", "quantization_config", "strict_mode_config")
COLLECTION_PARAMS = ("shard_number", "replication_factor", "write_consistency_factor", "on_disk_payload")


class NotFound(Exception):
    """Answered with 404."""


class Call(NamedTuple):
    """One request to one route."""

    engine: "Engine"
    names: tuple[str, ...]
    """The variable parts of the path; the first is the collection where there is one."""
    body: bytes

    def parse(self, kind: type[T] | Any) -> Any:
        return TypeAdapter(kind).validate_json(self.body)

    @property
    def local(self) -> QdrantLocal:
        return self.engine.local

    @property
    def collection(self) -> str:
        return self.engine.resolve(self.names[0])


@dataclass
class Settings:
    """What a server remembers of a collection and local mode forgets."""

    config: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    indexes: dict[str, Any] = field(default_factory=dict)

    def take(self, body: Any) -> None:
        """Remember the settings of a create or an update request."""
        for name in COLLECTION_SETTINGS:
            _merge(self.config, name, _plain(getattr(body, name, None)))
        for source in (body, getattr(body, "params", None)):
            self.params |= {
                key: value for key in COLLECTION_PARAMS if (value := getattr(source, key, None)) is not None
            }
        self.optimizer |= _plain(getattr(body, "optimizers_config", None)) or {}

    @property
    def strict(self) -> StrictMode:
        return StrictMode(self.config.get("strict_mode_config") or {}, frozenset(self.indexes))


class Engine:
    """Answers the requests of qdrant-client, one at a time."""

    def __init__(self, path: str | None, version: str) -> None:
        self.local = QdrantLocal(path or ":memory:", force_disable_check_same_thread=True)
        self.version = version
        self.settings: dict[str, Settings] = {}
        self.lock = threading.RLock()
        self.snapshots: snapshots.Snapshots = {}
        self.yellow_answers = 0
        """So many more times a collection says that its index is being built."""

    def answer(self, method: str, path: str, body: bytes) -> Any:
        """Give the result of a request. Raises: NotFound, KeyError, ValueError as a server's 404 and 400."""
        for route_method, pattern, handler in ROUTES:
            match = pattern.fullmatch(path)
            if match and route_method == method:
                with self.lock:
                    return to_jsonable_python(handler(Call(self, match.groups(), body)))
        raise NotFound(f"no route {method} {path}")

    def resolve(self, name: str) -> str:
        return self.local.aliases.get(name, name)

    def settings_of(self, collection: str) -> Settings:
        return self.settings.setdefault(collection, Settings())

    def at_least(self, major: int, minor: int) -> bool:
        found = tuple(int(part) for part in self.version.split(".")[:2])
        return found >= (major, minor)


def _plain(value: Any) -> dict[str, Any] | None:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def _merge(target: dict[str, Any], name: str, value: dict[str, Any] | None) -> None:
    if value is not None:
        target[name] = {**(target.get(name) or {}), **value}


# --- collections ----------------------------------------------------------------------------------------------------


def _collection_info(call: Call) -> Any:
    info = to_jsonable_python(call.local.get_collection(call.collection))
    if call.engine.yellow_answers:
        call.engine.yellow_answers -= 1
        info["status"] = "yellow"
    settings = call.engine.settings_of(call.collection)
    for name, value in settings.config.items():
        info["config"][name] = {**(info["config"].get(name) or {}), **value}
    info["config"]["params"] |= settings.params
    info["config"]["optimizer_config"] |= settings.optimizer
    info["payload_schema"] = {
        key: {"data_type": kind, "points": info["points_count"]} for key, kind in settings.indexes.items()
    }
    return info


def _create_collection(call: Call) -> bool:
    body = call.parse(models.CreateCollection)
    name = call.names[0]
    call.local.create_collection(
        name, vectors_config=body.vectors, sparse_vectors_config=body.sparse_vectors, metadata=body.metadata
    )
    call.engine.settings[name] = Settings()
    call.engine.settings[name].take(body)
    return True


def _update_collection(call: Call) -> bool:
    body = call.parse(models.UpdateCollection)
    call.local.update_collection(
        call.collection,
        metadata=body.metadata,
        vectors_config=body.vectors,
        sparse_vectors_config=body.sparse_vectors,
    )
    vectors = call.local.collections[call.collection].config.vectors
    for name, diff in (body.vectors or {}).items():
        params = vectors if isinstance(vectors, models.VectorParams) else (vectors or {})[name]
        for key, value in diff:
            if value is not None:
                setattr(params, key, value)
    call.engine.settings_of(call.collection).take(body)
    return True


def _delete_collection(call: Call) -> bool:
    call.engine.settings.pop(call.names[0], None)
    return bool(call.local.delete_collection(call.names[0]))


def _create_vector(call: Call) -> Any:
    if not call.engine.at_least(1, 18):
        raise NotFound("no such route before 1.18")
    return call.local.create_vector_name(call.collection, call.names[1], call.parse(models.VectorNameConfig))


def _delete_vector(call: Call) -> Any:
    if not call.engine.at_least(1, 18):
        raise NotFound("no such route before 1.18")
    return call.local.delete_vector_name(call.collection, call.names[1])


def _create_index(call: Call) -> Any:
    body = call.parse(models.CreateFieldIndex)
    call.local.get_collection(call.collection)
    schema = to_jsonable_python(body.field_schema)
    call.engine.settings_of(call.collection).indexes[body.field_name] = (
        schema["type"] if isinstance(schema, dict) else schema
    )
    return COMPLETED


def _delete_index(call: Call) -> Any:
    call.engine.settings_of(call.collection).indexes.pop(call.names[1], None)
    return COMPLETED


def _change_aliases(call: Call) -> bool:
    return call.local.update_collection_aliases(call.parse(models.ChangeAliasesOperation).actions)


def _create_snapshot(call: Call) -> Any:
    return snapshots.create(call.local, call.engine.snapshots, call.collection)


def _recover_snapshot(call: Call) -> bool:
    return snapshots.recover(call.local, call.engine.snapshots, call.collection, call.parse(models.SnapshotRecover))


def _delete_snapshot(call: Call) -> bool:
    return call.engine.snapshots.pop((call.names[0], call.names[1]), None) is not None


# --- points: writing ------------------------------------------------------------------------------------------------


def _strict(call: Call) -> StrictMode:
    call.local.get_collection(call.collection)
    return call.engine.settings_of(call.collection).strict


def _upsert(call: Call) -> Any:
    body = call.parse(models.PointInsertOperations)
    points = body.batch if isinstance(body, models.PointsBatch) else body.points
    _strict(call).check_batch(len(points.ids) if isinstance(points, models.Batch) else len(points))
    return call.local.upsert(call.collection, points, update_filter=body.update_filter, update_mode=body.update_mode)


def _update_vectors(call: Call) -> Any:
    body = call.parse(models.UpdateVectors)
    _strict(call).check_batch(len(body.points))
    return call.local.update_vectors(call.collection, body.points, update_filter=body.update_filter)


def _delete_vectors(call: Call) -> Any:
    body = call.parse(models.DeleteVectors)
    _strict(call).check_update(body.filter)
    return call.local.delete_vectors(call.collection, body.vector, body.points or body.filter)


def _delete_points(call: Call) -> Any:
    body = call.parse(models.PointsSelector)
    _strict(call).check_update(getattr(body, "filter", None))
    return call.local.delete(call.collection, body)


def _set_payload(call: Call) -> Any:
    body = call.parse(models.SetPayload)
    _strict(call).check_update(body.filter)
    return call.local.set_payload(call.collection, body.payload, points=body.points or body.filter, key=body.key)


def _overwrite_payload(call: Call) -> Any:
    body = call.parse(models.SetPayload)
    _strict(call).check_update(body.filter)
    return call.local.overwrite_payload(call.collection, body.payload, points=body.points or body.filter)


def _delete_payload(call: Call) -> Any:
    body = call.parse(models.DeletePayload)
    _strict(call).check_update(body.filter)
    return call.local.delete_payload(call.collection, body.keys, points=body.points or body.filter)


def _clear_payload(call: Call) -> Any:
    body = call.parse(models.PointsSelector)
    _strict(call).check_update(getattr(body, "filter", None))
    return call.local.clear_payload(call.collection, body)


def _batch(call: Call) -> Any:
    operations = call.parse(models.UpdateOperations).operations
    return call.local.batch_update_points(call.collection, operations)


# --- points: reading ------------------------------------------------------------------------------------------------


def _retrieve(call: Call) -> Any:
    body = call.parse(models.PointRequest)
    payload = True if body.with_payload is None else body.with_payload
    return call.local.retrieve(call.collection, body.ids, with_payload=payload, with_vectors=body.with_vector or False)


def _retrieve_one(call: Call) -> Any:
    point_id: int | str = int(call.names[1]) if call.names[1].isdigit() else call.names[1]
    found = call.local.retrieve(call.collection, [point_id], with_payload=True, with_vectors=True)
    if not found:
        raise NotFound(f"point {point_id}")
    return found[0]


def _scroll(call: Call) -> Any:
    body = call.parse(models.ScrollRequest)
    strict = _strict(call)
    strict.check_filter(body.filter)
    strict.check_limit(body.limit)
    order_by = models.OrderBy(key=body.order_by) if isinstance(body.order_by, str) else body.order_by
    points, following = call.local.scroll(
        call.collection,
        scroll_filter=body.filter,
        limit=body.limit or 10,
        order_by=order_by,
        offset=body.offset,
        with_payload=True if body.with_payload is None else body.with_payload,
        with_vectors=body.with_vector or False,
    )
    return {"points": points, "next_page_offset": following}


def _count(call: Call) -> Any:
    body = call.parse(models.CountRequest)
    _strict(call).check_filter(body.filter)
    return call.local.count(call.collection, count_filter=body.filter)


def _facet(call: Call) -> Any:
    body = call.parse(models.FacetRequest)
    _strict(call).check_filter(body.filter)
    return call.local.facet(call.collection, body.key, facet_filter=body.filter, limit=body.limit or 10)


def _answer_query(call: Call, body: models.QueryRequest) -> Any:
    strict = _strict(call)
    strict.check_filter(body.filter)
    strict.check_limit(body.limit)
    idf = body.params.idf if body.params is not None else None
    return call.local.query_points(
        call.collection,
        query=body.query,
        using=body.using,
        prefetch=body.prefetch,
        query_filter=body.filter,
        search_params=None if idf is None else models.SearchParams(idf=idf),
        limit=body.limit or 10,
        offset=body.offset,
        with_payload=body.with_payload or False,
        with_vectors=body.with_vector or False,
        score_threshold=body.score_threshold,
        lookup_from=body.lookup_from,
    )


def _query(call: Call) -> Any:
    return _answer_query(call, call.parse(models.QueryRequest))


def _query_batch(call: Call) -> Any:
    return [_answer_query(call, body) for body in call.parse(models.QueryRequestBatch).searches]


def _query_groups(call: Call) -> Any:
    body = call.parse(models.QueryGroupsRequest)
    return call.local.query_points_groups(
        call.collection,
        group_by=body.group_by,
        query=body.query,
        using=body.using,
        prefetch=body.prefetch,
        query_filter=body.filter,
        limit=body.limit or 3,
        group_size=body.group_size or 3,
        with_payload=body.with_payload or False,
        score_threshold=body.score_threshold,
    )


def _route(method: str, template: str, handler: Handler) -> tuple[str, re.Pattern[str], Handler]:
    return method, re.compile(template.replace("{}", "([^/]+)")), handler


ROUTES = [
    _route("GET", "/collections", lambda call: call.local.get_collections()),
    _route("GET", "/collections/{}", _collection_info),
    _route("PUT", "/collections/{}", _create_collection),
    _route("PATCH", "/collections/{}", _update_collection),
    _route("DELETE", "/collections/{}", _delete_collection),
    _route("GET", "/collections/{}/exists", lambda call: {"exists": call.local.collection_exists(call.names[0])}),
    _route("PUT", "/collections/{}/vectors/{}", _create_vector),
    _route("DELETE", "/collections/{}/vectors/{}", _delete_vector),
    _route("PUT", "/collections/{}/index", _create_index),
    _route("DELETE", "/collections/{}/index/{}", _delete_index),
    _route("GET", "/cluster", lambda _: {"status": "disabled"}),
    _route("POST", "/collections/{}/snapshots", _create_snapshot),
    _route("PUT", "/collections/{}/snapshots/recover", _recover_snapshot),
    _route("DELETE", "/collections/{}/snapshots/{}", _delete_snapshot),
    _route("GET", "/aliases", lambda call: call.local.get_aliases()),
    _route("GET", "/collections/{}/aliases", lambda call: call.local.get_collection_aliases(call.names[0])),
    _route("POST", "/collections/aliases", _change_aliases),
    _route("PUT", "/collections/{}/points", _upsert),
    _route("POST", "/collections/{}/points", _retrieve),
    _route("GET", "/collections/{}/points/{}", _retrieve_one),
    _route("PUT", "/collections/{}/points/vectors", _update_vectors),
    _route("POST", "/collections/{}/points/vectors/delete", _delete_vectors),
    _route("POST", "/collections/{}/points/delete", _delete_points),
    _route("POST", "/collections/{}/points/payload", _set_payload),
    _route("PUT", "/collections/{}/points/payload", _overwrite_payload),
    _route("POST", "/collections/{}/points/payload/delete", _delete_payload),
    _route("POST", "/collections/{}/points/payload/clear", _clear_payload),
    _route("POST", "/collections/{}/points/batch", _batch),
    _route("POST", "/collections/{}/points/scroll", _scroll),
    _route("POST", "/collections/{}/points/count", _count),
    _route("POST", "/collections/{}/facet", _facet),
    _route("POST", "/collections/{}/points/query", _query),
    _route("POST", "/collections/{}/points/query/batch", _query_batch),
    _route("POST", "/collections/{}/points/query/groups", _query_groups),
]
"""Method, path and handler."""

READS = re.compile(r".*/(points|points/scroll|points/count|facet|points/query(/batch|/groups)?)")
"""Paths that POST only to read."""


def is_write(method: str, path: str) -> bool:
    """Say whether a read-only key may not send this."""
    return method != "GET" and not (method == "POST" and READS.fullmatch(path))
