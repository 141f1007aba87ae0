"""Creates the collection that a corpus goes into, joins one that has the same contract, or creates one like another."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel
from qdrant_client import models

from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError, Rejected, ServerTooOld
from care_qdrant.store.collection import Collection
from care_qdrant.store.contract_checks import check_contract, check_sparse_contract
from care_qdrant.store.contracts import SparseContract, VectorContract, contract_metadata
from care_qdrant.store.schema import IDENTITY_KEY, LOAD_KEY, CollectionSchema

Model = TypeVar("Model", bound=BaseModel)

SPARSE_VECTOR_NAME = bm25.VECTOR_NAME
METADATA_SINCE = (1, 15)
METADATA_FEATURE = "collection metadata, which hold the fingerprint of the model,"
DOCUMENT_KEY = "doc_id"
"""Indexed in every collection of ours on a server; the embedded database keeps no indexes to copy."""

QUANTIZATION: dict[str | None, models.QuantizationConfig | None] = {
    None: None,
    "int8": models.ScalarQuantization(
        scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
    ),
    "binary": models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True)),
}


@dataclass(frozen=True, slots=True)
class Storage:
    """How a new collection holds its vectors. The embedded database keeps float32 in memory, whatever this says."""

    quantization: Literal["int8", "binary"] | None = None
    """Kind of the compressed copy that a search reads first; the original vectors stay."""
    on_disk: bool = False
    datatype: Literal["float32", "float16"] = "float32"
    shards: int | None = None
    """Number of shards; None leaves it to the server."""
    replicas: int | None = None
    """Copies of each shard; None leaves it to the server."""


@dataclass(frozen=True, slots=True)
class PointVectors:
    """The named vectors that the points of a run carry, with what made them."""

    vector_name: str
    dense: VectorContract
    sparse: SparseContract | None = None

    def metadata(self) -> dict[str, Any]:
        """Return the contracts as a collection stores them."""
        sparse = {} if self.sparse is None else contract_metadata(SPARSE_VECTOR_NAME, self.sparse)
        return contract_metadata(self.vector_name, self.dense) | sparse


def join_collection(
    collection: Collection, vector_name: str, contract: VectorContract, *, sparse: bool
) -> PointVectors | None:
    """Check an existing collection and return what its points carry; None where there is no such collection.

    A collection that has our BM25 vector gets it from every run: a point without it would be missing from each
    sparse search.

    Raises:
        InputError: It lacks a vector, or has it beside one for which the documents were cut into chunks.
        ContractError: Other models made its vectors.
        ServerTooOld: The server keeps no metadata.
    """
    collection.require_server(METADATA_SINCE, METADATA_FEATURE)
    if not collection.exists():
        return None
    schema = collection.refresh()
    check_contract(schema, vector_name, contract)
    _require_own_chunks(schema, vector_name)
    if not sparse and SPARSE_VECTOR_NAME not in schema.contracts:
        return PointVectors(vector_name, contract)
    return PointVectors(vector_name, contract, check_sparse_contract(schema, SPARSE_VECTOR_NAME, bm25.ANALYSER))


def create_collection(
    collection: Collection, vectors: PointVectors, storage: Storage, *, bulk_load: bool
) -> PointVectors | None:
    """Create the collection with its contract, in one request.

    Args:
        collection: It does not exist yet.
        vectors: Its named vectors.
        storage: Options of the server.
        bulk_load: Build no search graph until `finish_load`: nobody searches a collection that is being made, and
            building once at the end is cheaper. That something is left to do is kept in the collection's metadata, so
            that any later run can finish an interrupted load.

    Returns:
        None; or what the points carry of a collection that another run made in the meantime.
    """
    waits = bulk_load and not collection.is_embedded
    load = {} if collection.is_embedded else {LOAD_KEY: {"vector": vectors.vector_name, "graph": waits, "done": False}}
    sparse = models.SparseVectorParams(modifier=models.Modifier.IDF)
    try:
        collection.create(
            vectors_config={vectors.vector_name: _vector_params(vectors.dense, storage, waits)},
            sparse_vectors_config=None if vectors.sparse is None else {SPARSE_VECTOR_NAME: sparse},
            quantization_config=QUANTIZATION[storage.quantization],
            shard_number=storage.shards,
            replication_factor=storage.replicas,
            metadata=vectors.metadata() | load | {IDENTITY_KEY: uuid.uuid4().hex},
        )
    except Rejected:
        # Another run made it, or our own request did and its answer was lost.
        joined = join_collection(collection, vectors.vector_name, vectors.dense, sparse=vectors.sparse is not None)
        if joined is None:
            raise
        return joined
    if vectors.vector_name not in collection.refresh().contracts:
        collection.drop()
        raise ServerTooOld(f"the server does not keep metadata of collection {collection.name!r}; it needs Qdrant 1.16")
    return None


def finish_load(collection: Collection) -> None:
    """Let the server index a collection that ingestion made and that is loaded now; else do nothing."""
    schema = collection.refresh()
    load = schema.metadata.get(LOAD_KEY)
    if not load or load["done"]:
        return
    collection.create_indexes({DOCUMENT_KEY: models.PayloadSchemaType.KEYWORD})
    graph = models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=schema.config.hnsw_config.m))
    vectors = {load["vector"]: graph} if load["graph"] else None
    metadata = {LOAD_KEY: {**load, "done": True}}
    collection.update("building the search graph", vectors_config=vectors, metadata=metadata)


def create_like(collection: Collection, schema: CollectionSchema, metadata: Mapping[str, Any]) -> None:
    """Create a collection with the vectors, the settings and the indexes of another one; resumable at any moment.

    Args:
        collection: It does not exist, unless a lost answer of this call left it.
        schema: Of the other one.
        metadata: Of the new one.

    Raises:
        InputError: The other one has custom shards.
        ServerTooOld: The server keeps no metadata, and so no contract.
        Rejected: The server refuses a setting.
    """
    params = schema.config.params
    if params.sharding_method is models.ShardingMethod.CUSTOM:
        raise InputError("the collection has shards by key, which are not copied; use Qdrant's own snapshots for it")
    if metadata:
        collection.require_server(METADATA_SINCE, METADATA_FEATURE)
    try:
        collection.create(
            vectors_config=params.vectors,
            sparse_vectors_config=params.sparse_vectors,
            metadata={**metadata, IDENTITY_KEY: uuid.uuid4().hex} if metadata else None,
            **({} if schema.embedded else _settings(schema.config)),
        )
    except Rejected:
        if not collection.exists():
            raise
    collection.create_indexes(indexes_of(schema))


def indexes_of(schema: CollectionSchema) -> dict[str, Any]:
    """Return the payload indexes that a copy of a collection needs: payload key to the schema of its index."""
    indexes = {key: index.params or index.data_type for key, index in schema.payload_schema.items()}
    if schema.embedded and schema.contracts:
        indexes[DOCUMENT_KEY] = models.PayloadSchemaType.KEYWORD
    return indexes


def _require_own_chunks(schema: CollectionSchema, vector_name: str) -> None:
    """Refuse a vector that was attached to documents which were cut into chunks for another one."""
    attached = schema.attached
    cut_for = [
        name for name, found in schema.contracts.items() if isinstance(found, VectorContract) and name not in attached
    ]
    if vector_name in attached and cut_for:
        raise InputError(
            f"vector {vector_name!r} was attached to points of collection {schema.name!r} that hold documents as "
            f"they were cut for vector {cut_for[0]!r}, and ingesting for another model would cut them anew under it. "
            f"Ingest with the model of {cut_for[0]!r}; then, with this --model and the same --path/--url: "
            f"care attach {schema.name} --vector-name {vector_name}"
        )


def _vector_params(contract: VectorContract, storage: Storage, waits: bool) -> models.VectorParams:
    return models.VectorParams(
        size=contract.dim,
        distance=contract.qdrant_distance,
        on_disk=storage.on_disk or None,
        datatype=None if storage.datatype == "float32" else models.Datatype(storage.datatype),
        hnsw_config=models.HnswConfigDiff(m=0) if waits else None,
    )


def _settings(config: models.CollectionConfig) -> dict[str, Any]:
    """Return what a server was told of a collection; what the embedded database reports here nobody chose."""
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
    """Return what a server accepts, made of what it answers."""
    if answer is None:
        return None
    known = {key: value for key, value in answer.model_dump(exclude_none=True).items() if key in kind.model_fields}
    return kind.model_validate(known)
