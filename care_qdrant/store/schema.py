"""A collection without its points: schema, settings, payload indexes, metadata. Read it, and make another one of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from qdrant_client import QdrantClient, models

from care_qdrant.errors import FingerprintMismatch, InputError, Rejected, SchemaMismatch
from care_qdrant.store.connection import is_embedded, require_server
from care_qdrant.store.contracts import (
    METADATA_KEY,
    dense_vectors,
    read_contracts,
    require_collection,
    sparse_vectors,
)
from care_qdrant.store.create import LOAD_KEY, METADATA_SINCE
from care_qdrant.store.retry import Collection

Model = TypeVar("Model", bound=BaseModel)

DOCUMENT_KEY = "doc_id"
"""Indexed in every collection of ours on a server; the embedded database keeps no indexes to copy."""


@dataclass(frozen=True, slots=True)
class CollectionSchema:
    """All that a new collection needs to become like this one."""

    config: models.CollectionConfig
    dense: Mapping[str, models.VectorParams]
    """By name; the unnamed vector is ``""``."""
    sparse: Mapping[str, models.SparseVectorParams]
    indexes: Mapping[str, Any]
    """Payload key to the schema of its index."""
    points: int
    """Counted exactly."""
    embedded: bool

    @property
    def metadata(self) -> dict[str, Any]:
        """What the collection remembers, contracts included."""
        return dict(self.config.metadata or {})


def resolve(client: QdrantClient, name: str) -> str:
    """Give the collection behind an alias, or the name itself.

    Raises:
        InputError: it is neither a collection nor an alias.
    """
    require_collection(client, name)
    return aliases(client).get(name, name)


def aliases(client: QdrantClient) -> dict[str, str]:
    """Give all aliases with the collections behind them."""
    return {alias.alias_name: alias.collection_name for alias in client.get_aliases().aliases}


def read_blueprint(link: Collection) -> CollectionSchema:
    """Read a collection that is there.

    Raises:
        InputError: its ingestion was interrupted, so it is not whole.
    """
    blueprint = link.call("reading its schema", lambda: _read(link))
    load = blueprint.metadata.get(LOAD_KEY)
    if load and not load["done"]:
        raise InputError(
            f"the ingestion of collection {link.collection!r} was interrupted and has not been finished; "
            "run the same care ingest again, and then this"
        )
    return blueprint


def create_like(link: Collection, blueprint: CollectionSchema, metadata: Mapping[str, Any]) -> None:
    """Create a collection with the schema, the settings and the indexes of another one, in a state that can be resumed.

    Args:
        link: Where; a collection of this name must not be there, unless a lost answer of this call left it.
        blueprint: Of the other one.
        metadata: What the new one remembers.

    Raises:
        ServerTooOld: the server keeps no metadata, and so no contract.
        Rejected: the server refuses a setting.
    """
    if metadata:
        feature = "collection metadata, which hold the fingerprint of the model,"
        link.call("asking its version", lambda: require_server(link.client, METADATA_SINCE, feature))
    try:
        link.call("creating the collection", lambda: _create(link, blueprint, metadata))
    except Rejected:
        if not link.client.collection_exists(link.collection):
            raise
    create_indexes(link, blueprint)


def create_indexes(link: Collection, blueprint: CollectionSchema) -> None:
    """Create those payload indexes that are not there yet."""
    if is_embedded(link.client):
        return
    there = link.call("reading its indexes", lambda: link.client.get_collection(link.collection).payload_schema)
    for key, schema in blueprint.indexes.items():
        if key not in there:
            link.write(f"indexing {key}", lambda: _create_index(link, key, schema))  # noqa: B023  # called at once


def check_like(link: Collection, found: CollectionSchema, wanted: CollectionSchema) -> None:
    """Refuse a collection that cannot hold the points of another one, or that belongs to another model.

    Raises:
        SchemaMismatch: its vectors differ.
        FingerprintMismatch: its contracts differ, and it is not empty.
    """
    these, those = _schema(found), _schema(wanted)
    if these != those:
        raise SchemaMismatch(
            f"collection {link.collection!r} is there with other vectors: {_difference(these, those)}. "
            "Nothing was written; choose another name for the target"
        )
    contracts, expected = _contracts(found), _contracts(wanted)
    if contracts != expected and (contracts or found.points):
        raise FingerprintMismatch(
            f"collection {link.collection!r} is there with vectors of another model: "
            f"{_difference(contracts, expected)}. Nothing was written; choose another name for the target"
        )


def _read(link: Collection) -> CollectionSchema:
    info = link.client.get_collection(link.collection)
    return CollectionSchema(
        config=info.config,
        dense=dense_vectors(link.client, link.collection),
        sparse=sparse_vectors(link.client, link.collection),
        indexes=_indexes(link, info),
        points=link.client.count(link.collection, exact=True).count,
        embedded=is_embedded(link.client),
    )


def _indexes(link: Collection, info: models.CollectionInfo) -> dict[str, Any]:
    there = {key: index.params or index.data_type for key, index in info.payload_schema.items()}
    if is_embedded(link.client) and read_contracts(link.client, link.collection):
        there[DOCUMENT_KEY] = models.PayloadSchemaType.KEYWORD
    return there


def _create(link: Collection, blueprint: CollectionSchema, metadata: Mapping[str, Any]) -> bool:
    params = blueprint.config.params
    if params.sharding_method is models.ShardingMethod.CUSTOM:
        raise InputError("the collection has shards by key, which are not copied; use Qdrant's own snapshots for it")
    return link.client.create_collection(
        link.collection,
        vectors_config=params.vectors,
        sparse_vectors_config=params.sparse_vectors,
        metadata=dict(metadata),
        **({} if blueprint.embedded else _settings(blueprint.config)),
    )


def _settings(config: models.CollectionConfig) -> dict[str, Any]:
    """Give what a server was told of a collection; what the embedded database reports here nobody chose."""
    return {
        "shard_number": config.params.shard_number,
        "replication_factor": config.params.replication_factor,
        "write_consistency_factor": config.params.write_consistency_factor,
        "on_disk_payload": config.params.on_disk_payload,
        "payload": config.params.payload,
        "id_tracker": config.params.id_tracker,
        "hnsw_config": _request(models.HnswConfigDiff, config.hnsw_config),
        "optimizers_config": _request(models.OptimizersConfigDiff, config.optimizer_config),
        "wal_config": _request(models.WalConfigDiff, config.wal_config),
        "quantization_config": config.quantization_config,
        "strict_mode_config": _request(models.StrictModeConfig, config.strict_mode_config),
    }


def _request(kind: type[Model], answer: BaseModel | None) -> Model | None:
    """Turn what a server answers into what it accepts."""
    if answer is None:
        return None
    known = {key: value for key, value in answer.model_dump(exclude_none=True).items() if key in kind.model_fields}
    return kind.model_validate(known)


def _create_index(link: Collection, key: str, schema: Any) -> models.UpdateResult:
    return link.client.create_payload_index(link.collection, key, schema, wait=True)


def _schema(blueprint: CollectionSchema) -> dict[str, Any]:
    dense = {
        name or "(unnamed)": (vector.size, vector.distance.value, vector.multivector_config is not None)
        for name, vector in blueprint.dense.items()
    }
    return dense | {name: ("sparse", vector.modifier) for name, vector in blueprint.sparse.items()}


def _contracts(blueprint: CollectionSchema) -> dict[str, Any]:
    """Give the contracts without the version of the tool, which changes no vector."""
    entries = blueprint.metadata.get(METADATA_KEY) or {}
    return {
        name: {key: value for key, value in entry.items() if key != "tool_version"} for name, entry in entries.items()
    }


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    return "; ".join(f"{name} is {found.get(name, 'missing')}, expected {wanted.get(name, 'none')}" for name in names)
