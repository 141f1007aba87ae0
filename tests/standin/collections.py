"""Routes on whole collections: schema, settings, indexes, aliases."""

from typing import Any

from pydantic_core import to_jsonable_python
from qdrant_client import models

from tests.standin.call import COMPLETED, Call, NoRoute, Settings, route


def _collection_info(call: Call) -> Any:
    info = to_jsonable_python(call.local.get_collection(call.collection))
    settings = call.engine.settings_of(call.collection)
    for name, value in settings.config.items():
        info["config"][name] = {**(info["config"].get(name) or {}), **value}
    info["config"]["params"] |= settings.params
    info["config"]["optimizer_config"] |= settings.optimizer
    info["payload_schema"] = {key: {**index, "points": info["points_count"]} for key, index in settings.indexes.items()}
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
        raise NoRoute
    return call.local.create_vector_name(call.collection, call.names[1], call.parse(models.VectorNameConfig))


def _delete_vector(call: Call) -> Any:
    if not call.engine.at_least(1, 18):
        raise NoRoute
    return call.local.delete_vector_name(call.collection, call.names[1])


def _create_index(call: Call) -> Any:
    body = call.parse(models.CreateFieldIndex)
    call.local.get_collection(call.collection)
    schema = to_jsonable_python(body.field_schema)
    call.engine.settings_of(call.collection).indexes[body.field_name] = (
        {"data_type": schema["type"], "params": schema} if isinstance(schema, dict) else {"data_type": schema}
    )
    return COMPLETED


def _change_aliases(call: Call) -> bool:
    return call.local.update_collection_aliases(call.parse(models.ChangeAliasesOperation).actions)


ROUTES = [
    route("GET", "/collections", lambda call: call.local.get_collections()),
    route("GET", "/collections/{}", _collection_info),
    route("PUT", "/collections/{}", _create_collection),
    route("PATCH", "/collections/{}", _update_collection),
    route("DELETE", "/collections/{}", _delete_collection),
    route("GET", "/collections/{}/exists", lambda call: {"exists": call.local.collection_exists(call.names[0])}),
    route("PUT", "/collections/{}/vectors/{}", _create_vector),
    route("DELETE", "/collections/{}/vectors/{}", _delete_vector),
    route("PUT", "/collections/{}/index", _create_index),
    route("GET", "/cluster", lambda _: {"status": "disabled"}),
    route("GET", "/aliases", lambda call: call.local.get_aliases()),
    route("GET", "/collections/{}/aliases", lambda call: call.local.get_collection_aliases(call.names[0])),
    route("POST", "/collections/aliases", _change_aliases),
]
