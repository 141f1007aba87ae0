"""Makes the collection that a corpus goes into, or joins one that has the same contract."""

from dataclasses import asdict, dataclass
from typing import Literal

from qdrant_client import models

from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError, Rejected, ServerTooOld
from care_qdrant.store.attached import ATTACH_KEY
from care_qdrant.store.connection import is_embedded, require_server
from care_qdrant.store.contracts import (
    METADATA_KEY,
    SparseContract,
    VectorContract,
    check_contract,
    check_sparse_contract,
    read_contracts,
    read_metadata,
)
from care_qdrant.store.retry import Collection

SPARSE_VECTOR_NAME = bm25.VECTOR_NAME
LOAD_KEY = "care_bulk_load"
"""In the collection's metadata: what the bulk load of a new collection still has to restore."""
METADATA_SINCE = (1, 15)


@dataclass(frozen=True, slots=True)
class Storage:
    """How a new collection holds its vectors. The embedded database keeps float32 in memory, whatever this says."""

    quantization: Literal["int8", "binary"] | None = None
    """Of the copy that a search reads first; the originals stay."""
    on_disk: bool = False
    datatype: Literal["float32", "float16"] = "float32"
    shards: int | None = None
    replicas: int | None = None
    """None leaves the number to the server."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What the points of a run carry."""

    vector_name: str
    dense: VectorContract
    sparse: SparseContract | None = None

    def contracts(self) -> dict[str, VectorContract | SparseContract]:
        """Give the contract of each vector, by its name."""
        sparse = {} if self.sparse is None else {SPARSE_VECTOR_NAME: self.sparse}
        return {self.vector_name: self.dense, **sparse}


def join_collection(link: Collection, vector_name: str, contract: VectorContract, *, sparse: bool) -> Schema | None:
    """Check an existing collection and give what its points carry; None where there is no such collection.

    A collection that has our BM25 vector gets it from every run: a point without it would be missing from each
    sparse search.

    Raises:
        InputError: it lacks a vector, or has it beside one that the documents were cut for.
        ContractError: other models made its vectors.
        ServerTooOld: the server keeps no metadata.
    """
    feature = "collection metadata, which hold the fingerprint of the model,"
    link.call("asking its version", lambda: require_server(link.client, METADATA_SINCE, feature))
    return link.call("reading its contract", lambda: _join(link, vector_name, contract, sparse))


def _join(link: Collection, vector_name: str, contract: VectorContract, sparse: bool) -> Schema | None:
    if not link.client.collection_exists(link.collection):
        return None
    check_contract(link.client, link.collection, vector_name, contract)
    _require_own_cut(link, vector_name)
    if not sparse and SPARSE_VECTOR_NAME not in read_contracts(link.client, link.collection):
        return Schema(vector_name, contract)
    found = check_sparse_contract(link.client, link.collection, SPARSE_VECTOR_NAME, bm25.ANALYSER)
    return Schema(vector_name, contract, found)


def _require_own_cut(link: Collection, vector_name: str) -> None:
    """Refuse a vector that was attached to documents which were cut into chunks for another one."""
    attached = read_metadata(link.client, link.collection).get(ATTACH_KEY) or {}
    contracts = read_contracts(link.client, link.collection)
    cut_for = [name for name, found in contracts.items() if isinstance(found, VectorContract) and name not in attached]
    if vector_name in attached and cut_for:
        raise InputError(
            f"vector {vector_name!r} was attached to points of collection {link.collection!r} that hold documents as "
            f"they were cut for vector {cut_for[0]!r}, and ingesting for another model would cut them anew under it. "
            f"Ingest with the model of {cut_for[0]!r}; then, with this --model and the same --path/--url: "
            f"care attach {link.collection} --vector-name {vector_name}"
        )


def create_collection(link: Collection, schema: Schema, storage: Storage, *, bulk_load: bool) -> Schema | None:
    """Create the collection with its contract, in one request.

    Args:
        link: Where; no such collection is there.
        schema: Its named vectors.
        storage: Options of the server.
        bulk_load: Build no search graph until `finish_load`: nobody searches a collection that is being made, and
            building once at the end is cheaper. That something is left to do is kept in the collection's metadata, so
            that any later run can finish an interrupted load.

    Returns:
        None; or what the points carry of a collection that another run made in the meantime.
    """
    waits = bulk_load and not is_embedded(link.client)
    load = {} if is_embedded(link.client) else {LOAD_KEY: {"vector": schema.vector_name, "graph": waits, "done": False}}
    contracts = {name: asdict(contract) for name, contract in schema.contracts().items()}
    try:
        link.call(
            "creating the collection",
            lambda: link.client.create_collection(
                link.collection,
                vectors_config={schema.vector_name: _vector_params(schema.dense.dim, storage, waits)},
                sparse_vectors_config=_sparse_params(schema),
                quantization_config=QUANTIZATION[storage.quantization],
                shard_number=storage.shards,
                replication_factor=storage.replicas,
                metadata={METADATA_KEY: contracts, **load},
            ),
        )
    except Rejected:
        # Another run made it, or our own request did and its answer was lost.
        joined = join_collection(link, schema.vector_name, schema.dense, sparse=schema.sparse is not None)
        if joined is None:
            raise
        return joined
    kept = link.call("reading its contract", lambda: read_contracts(link.client, link.collection))
    if schema.vector_name not in kept:
        link.client.delete_collection(link.collection)
        raise ServerTooOld(f"the server does not keep metadata of collection {link.collection!r}; it needs Qdrant 1.16")
    return None


def finish_load(link: Collection) -> None:
    """Let the server index a collection that ingestion made and that is loaded now; else do nothing."""
    config = link.call("reading its settings", lambda: link.client.get_collection(link.collection)).config
    load = (config.metadata or {}).get(LOAD_KEY)
    if not load or load["done"]:
        return
    link.write("indexing doc_id", lambda: _index_document_ids(link))
    graph = models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=config.hnsw_config.m))
    vectors = {load["vector"]: graph} if load["graph"] else None
    done = {LOAD_KEY: {**load, "done": True}}
    link.call(
        "building the search graph",
        lambda: link.client.update_collection(link.collection, vectors_config=vectors, metadata=done),
    )


QUANTIZATION: dict[str | None, models.QuantizationConfig | None] = {
    None: None,
    "int8": models.ScalarQuantization(
        scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
    ),
    "binary": models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True)),
}


def _vector_params(dim: int, storage: Storage, waits: bool) -> models.VectorParams:
    return models.VectorParams(
        size=dim,
        distance=models.Distance.COSINE,
        on_disk=storage.on_disk or None,
        datatype=None if storage.datatype == "float32" else models.Datatype(storage.datatype),
        hnsw_config=models.HnswConfigDiff(m=0) if waits else None,
    )


def _sparse_params(schema: Schema) -> dict[str, models.SparseVectorParams] | None:
    if schema.sparse is None:
        return None
    return {SPARSE_VECTOR_NAME: models.SparseVectorParams(modifier=models.Modifier.IDF)}


def _index_document_ids(link: Collection) -> models.UpdateResult:
    return link.client.create_payload_index(link.collection, "doc_id", models.PayloadSchemaType.KEYWORD, wait=True)
