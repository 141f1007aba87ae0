"""Creates collections for ingestion, copies and LlamaIndex, and joins existing ones with the same contract."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, TypeAdapter
from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract, contract_metadata
from care_qdrant.contracts.metadata import IDENTITY, LOAD
from care_qdrant.contracts.paths import readings
from care_qdrant.contracts.stand_in import StandIn, stand_in_metadata
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import InputError, Rejected, next_command, require_counts
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.quantization import QUANTIZATION, Quantization, StoredDatatype
from care_qdrant.qdrant.schema import CollectionSchema

Model = TypeVar("Model", bound=BaseModel)
_CONFIG: TypeAdapter[models.QuantizationConfig] = TypeAdapter(models.QuantizationConfig)

SPARSE_VECTOR_NAME = bm25.VECTOR_NAME
DOCUMENT_KEY = "doc_id"
"""Indexed in every collection of ours on a server; the embedded database keeps no indexes to copy."""

MEMORY_SINCE = (1, 19)
"""First version of a server that takes ``memory`` in place of ``on_disk`` and ``always_ram``, which it will drop."""

Index = Literal["keyword", "integer", "float", "bool", "datetime", "text", "uuid", "tenant"]
"""Type of the values under a payload key; ``tenant`` is a keyword by which the server groups points in storage."""
_TENANT = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
_INDEX = re.compile(r"""(?P<key>(?>"[^"]*"|[^=])++)(?:=(?P<kind>.*))?""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage of the vectors of a new collection. The embedded database ignores it and keeps float32 in memory."""

    quantization: Quantization | None = None
    """Kind of the compressed copy that a search reads first; the original vectors stay."""
    on_disk: bool = False
    datatype: StoredDatatype = "float32"
    shards: int | None = None
    """Number of shards; None leaves it to the server."""
    replicas: int | None = None
    """Copies of each shard; None leaves it to the server."""
    write_consistency: int | None = None
    """Copies that have to acknowledge a write; None leaves it to the server, which takes one."""

    def __post_init__(self) -> None:
        require_counts(shards=self.shards, replicas=self.replicas, write_consistency=self.write_consistency)


@dataclass(frozen=True, slots=True)
class PointVectors:
    """The named vectors that the points of a run carry, with what made them."""

    vector_name: str
    dense: VectorContract
    sparse: SparseContract | None = None
    stand_in: StandIn | None = None
    """Learned encoder that makes the dense vectors of this run in place of their model; None for any other run."""
    former_stand_ins: Mapping[str, str] = field(default_factory=dict)
    """Names of the learned encoders that made some of the existing dense vectors, by fingerprint."""

    def stand_in_metadata(self) -> dict[str, Any]:
        """Return the record of the stand-in encoders as the collection stores it; empty where there are none."""
        if self.stand_in is None:
            return {}
        known = {**self.former_stand_ins, self.stand_in.fingerprint: self.stand_in.model}
        return stand_in_metadata(self.vector_name, known)

    def metadata(self) -> dict[str, Any]:
        """Return the contracts as a collection stores them."""
        sparse = {} if self.sparse is None else contract_metadata(SPARSE_VECTOR_NAME, self.sparse)
        return contract_metadata(self.vector_name, self.dense) | sparse


def make_collection(
    collection: Collection,
    dense: models.VectorParams | Mapping[str, models.VectorParams] | None,
    sparse: Mapping[str, models.SparseVectorParams] | None,
    metadata: Mapping[str, Any],
    **settings: Any,
) -> bool:
    """Create a collection with its metadata, in one request; return whether this call made it.

    Args:
        collection: Its place and name.
        dense: Its dense vectors by name, or the unnamed one.
        sparse: Its sparse vectors by name.
        metadata: Its contracts and notes. A collection with any also gets an identity of its own.
        **settings: Settings of the server, as `QdrantClient.create_collection` takes them.

    Raises:
        Rejected: The server does not create such a collection, and none of this name exists.
    """
    try:
        collection.create(
            vectors_config=dense,
            sparse_vectors_config=sparse,
            metadata={**metadata, **IDENTITY.change(uuid.uuid4().hex)} if metadata else None,
            **settings,
        )
    except Rejected:
        # Another run made it, or our own request did and its answer was lost.
        if not collection.exists():
            raise
        return False
    return True


def join_collection(
    collection: Collection,
    vector_name: str,
    contract: VectorContract,
    *,
    sparse: bool,
    bm25_language: str | None = None,
    is_named: bool = True,
    stands_in: bool = False,
) -> PointVectors | None:
    """Check an existing collection and return the vectors that its points carry; None if it does not exist.

    A collection that has our BM25 vector gets it from every run: a point without it would be missing from every
    sparse search.

    Args:
        collection: Its place and name.
        vector_name: The dense vector.
        contract: The model of the run.
        sparse: Whether to refuse a collection without our BM25 vector.
        bm25_language: Language for which its terms must have been made; None for any.
        is_named: Whether the user chose the vector. Otherwise it is the one that the model was learned from, if any.
        stands_in: Whether the model's query encoder makes the vectors, in place of the model that it was learned from.
    """
    if not collection.exists():
        return None
    schema = collection.refresh()
    if not is_named:
        vector_name = next(iter(schema.learned_by(contract.fingerprint)), vector_name)
    check_contract(schema, vector_name, contract)
    _require_own_chunks(schema, vector_name)
    has_bm25 = sparse or SPARSE_VECTOR_NAME in schema.contracts
    return PointVectors(
        vector_name,
        contract,
        check_sparse_contract(schema, SPARSE_VECTOR_NAME, bm25_language) if has_bm25 else None,
        _stand_in(schema, vector_name, contract) if stands_in else None,
        schema.stand_ins.get(vector_name, {}),
    )


def _stand_in(schema: CollectionSchema, vector_name: str, contract: VectorContract) -> StandIn:
    """Return the record of a learned encoder that stands in; refuse one learned from another vector."""
    if vector_name not in schema.learned_by(contract.fingerprint):
        raise InputError(
            f"--stand-in: query encoder {contract.model!r} was not learned from vector {vector_name!r} of collection "
            f"{schema.name!r}, so its vectors of documents would lie in another space. Learn one from it, "
            + next_command(f"care learn {schema.name}", model=False)
        )
    if vector_name in schema.attached:
        raise InputError(
            f"--stand-in: vector {vector_name!r} of collection {schema.name!r} was attached, and care attach does not "
            "mark what an encoder that stands in has made; detach it, and attach another model"
        )
    made = schema.contracts.get(vector_name)
    return StandIn(contract.fingerprint, contract.model, None if made is None else made.fingerprint)


def create_collection(
    collection: Collection, vectors: PointVectors, storage: Storage, *, defer_graph: bool
) -> PointVectors | None:
    """Create a collection for ingestion, with its contract; if another run made it, return its points' vectors."""
    waits = defer_graph and not collection.is_embedded
    load = {"vector": vectors.vector_name, "graph": waits, "done": False}
    sparse = models.SparseVectorParams(modifier=models.Modifier.IDF)
    held = storage_settings(collection, storage.quantization, on_disk=storage.on_disk)
    quantization = held.pop("quantization_config", None)
    held["datatype"] = None if storage.datatype == "float32" else models.Datatype(storage.datatype)
    held["hnsw_config"] = models.HnswConfigDiff(m=0) if waits else None
    dense = vectors.dense.params.model_copy(update=held)
    is_made = make_collection(
        collection,
        {vectors.vector_name: dense},
        None if vectors.sparse is None else {SPARSE_VECTOR_NAME: sparse},
        vectors.metadata() | ({} if collection.is_embedded else LOAD.change(load)),
        quantization_config=quantization,
        sharding_method=models.ShardingMethod.CUSTOM if collection.shard_key is not None else None,
        shard_number=storage.shards,
        replication_factor=storage.replicas,
        write_consistency_factor=storage.write_consistency,
    )
    if not is_made:
        return join_collection(collection, vectors.vector_name, vectors.dense, sparse=vectors.sparse is not None)
    collection.refresh()
    return None


def join_shard_key(collection: Collection, storage: Storage, *, is_new: bool, dry_run: bool) -> bool:
    """Create the shards of a collection's key if they are missing; return whether they existed."""
    key, name = collection.shard_key, collection.name
    has_keys = collection.schema.has_shard_keys
    if key is None and has_keys:
        there = ", ".join(map(str, collection.shard_keys())) or "none yet"
        raise InputError(f"collection {name!r} has shards by key (there: {there}): give one with --shard-key")
    if key is None:
        return True
    if not has_keys:
        raise InputError(
            f"collection {name!r} has no shards by key, so --shard-key cannot be used; that is settled when a "
            "collection is made: choose another name"
        )
    if key in collection.shard_keys():
        return True
    if not dry_run:
        try:
            collection.create_shard_key(storage.shards, storage.replicas)
        except Rejected as error:
            if is_new and not collection.shard_keys():  # otherwise another run writes under its own key
                collection.drop()
            raise InputError(f"shard key {key!r} was not created: {error}; --shard-key needs a cluster") from error
    return False


def parse_indexes(given: Sequence[str]) -> dict[str, Index]:
    """Parse options of the form ``KEY`` or ``KEY=TYPE`` into payload indexes; the default type is keyword."""
    indexes: dict[str, Index] = {}
    for option in given:
        match = _INDEX.fullmatch(option)
        if match is None or (match["kind"] or "keyword") not in get_args(Index):
            raise InputError(
                f"--index {option!r}: expected KEY or KEY=TYPE, where TYPE is {', '.join(get_args(Index))}"
            )
        try:
            readings(match["key"])
        except InputError as error:
            raise InputError(f"--index: {error}") from error
        indexes[match["key"]] = cast(Index, match["kind"] or "keyword")
    return indexes


def index_schemas(indexes: Mapping[str, Index]) -> dict[str, Any]:
    """Return payload indexes as `Collection.create_indexes` takes them.

    A key with a dot gets an index for each of its `readings`, since no payload shows yet which one it is.
    """
    return {
        path: _TENANT if kind == "tenant" else models.PayloadSchemaType(kind)
        for key, kind in indexes.items()
        for path in readings(key)
    }


def finish_load(collection: Collection) -> None:
    """Start the server's indexing of a collection that ingestion made and has now loaded; otherwise do nothing."""
    schema = collection.refresh()
    load = schema.unfinished_load
    if load is None:
        return
    collection.create_indexes({DOCUMENT_KEY: models.PayloadSchemaType.KEYWORD})
    graph = models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=schema.config.hnsw_config.m))
    vectors = {load["vector"]: graph} if load.get("graph") else None
    done = LOAD.change({**load, "done": True})
    collection.update("building the search graph", vectors_config=vectors, metadata=done)


def create_like(collection: Collection, schema: CollectionSchema, metadata: Mapping[str, Any]) -> None:
    """Create a collection with the vectors, the settings and the indexes of another one; resumable at any moment."""
    params = schema.config.params
    if params.sharding_method is models.ShardingMethod.CUSTOM:
        raise InputError("the collection has shards by key, which are not copied; use Qdrant's own snapshots for it")
    settings = {} if schema.embedded else _settings(schema.config)
    make_collection(collection, params.vectors, params.sparse_vectors, metadata, **settings)
    collection.create_indexes(indexes_of(schema))


def indexes_of(schema: CollectionSchema) -> dict[str, Any]:
    """Return the payload indexes that a copy of a collection needs: payload key to the schema of its index."""
    indexes = {key: index.params or index.data_type for key, index in schema.payload_schema.items()}
    if schema.embedded and schema.contracts:
        indexes[DOCUMENT_KEY] = models.PayloadSchemaType.KEYWORD
    if schema.embedded:
        indexes |= dict.fromkeys(schema.tenant_keys, _TENANT)
    return indexes


def storage_settings(collection: Collection, quantization: Quantization | None, *, on_disk: bool) -> dict[str, Any]:
    """Return where a vector is stored, as fields of `VectorParams` that its server knows; empty for all in memory.

    A quantised copy is always in memory: a search reads all of it, but only the vectors that it rescores.
    """
    settings: dict[str, Any] = {}
    has_tiers = (
        (quantization is not None or on_disk) and not collection.is_embedded and collection.is_since(MEMORY_SINCE)
    )
    if quantization is not None:
        pinned = {"memory": models.Memory.PINNED} if has_tiers else {"always_ram": True}
        settings["quantization_config"] = quantization_config(quantization, pinned)
    if on_disk:
        settings |= {"memory": models.Memory.COLD} if has_tiers else {"on_disk": True}
    return settings


def quantization_config(kind: Quantization, held: Mapping[str, Any]) -> models.QuantizationConfig:
    """Return the configuration of a kind of quantization with the field that says where the copy is held."""
    [(name, settings)] = QUANTIZATION[kind].settings.items()
    config: models.QuantizationConfig = _CONFIG.validate_python({name: {**settings, **held}})
    return config


def _require_own_chunks(schema: CollectionSchema, vector_name: str) -> None:
    """Refuse a vector that was attached to documents which were cut into chunks for another one."""
    attached = schema.attached
    cut_for = [
        name
        for name, contract in schema.contracts.items()
        if isinstance(contract, VectorContract) and name not in attached
    ]
    if vector_name in attached and cut_for:
        raise InputError(
            f"vector {vector_name!r} was attached to points of collection {schema.name!r} that hold documents as "
            f"they were cut for vector {cut_for[0]!r}, and ingesting for another model would cut them again. "
            f"Ingest with the model of {cut_for[0]!r}; then, "
            + next_command(f"care attach {schema.name} --vector-name {vector_name}")
        )


def _settings(config: models.CollectionConfig) -> dict[str, Any]:
    """Return the settings that a server was given; the embedded database reports defaults, which are not copied."""
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
    """Convert settings that a server returns to the request that sets them."""
    if answer is None:
        return None
    known = {key: value for key, value in answer.model_dump(exclude_none=True).items() if key in kind.model_fields}
    return kind.model_validate(known)
