"""The collection that the first `add` of a `CareVectorStore` creates."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.vector_stores.care.filters import DOCUMENT_ID_KEY
from llama_index.vector_stores.care.settings import StoreSettings, payload_indexes
from qdrant_client import models

from care_qdrant import Collection
from care_qdrant.contracts.contract import SparseContract, contract_metadata
from care_qdrant.encoders.terms.sparse import NATIVE_BM25, SparseQueryEncoder
from care_qdrant.qdrant.create import make_collection
from care_qdrant.search.resolved import StoreConfig


def create_collection(
    collection: Collection,
    settings: StoreSettings,
    config: StoreConfig,
    encoder: SparseQueryEncoder | None,
    nodes: Sequence[BaseNode],
) -> None:
    """Create a collection with named vectors and, when the model is known, its contract.

    Args:
        collection: The name that has no collection yet, not an alias.
        settings: Names and parameters of the vectors, shards and indexes.
        config: The model of the vectors, and whether the sparse vector is BM25 by this package.
        encoder: Sparse encoder in place of BM25 by this package.
        nodes: The first ones to write, with their vectors: dimension and mean length are taken from them.
    """
    contract, dim = config.contract, len(nodes[0].get_embedding())
    metadata = {} if contract is None else contract_metadata(settings.dense_vector_name, contract)
    terms = None if encoder is None else encoder(nodes[0].get_content())
    is_native = isinstance(terms, models.Document) and terms.model == NATIVE_BM25
    modifier = models.Modifier.IDF if is_native else None
    if config.bm25:
        modifier = models.Modifier.IDF
        lexical = SparseContract.of_texts(node.get_content(MetadataMode.EMBED) for node in nodes)
        metadata |= contract_metadata(settings.sparse_vector_name, lexical)
    distance = models.Distance.COSINE if contract is None else contract.qdrant_distance
    dense = settings.dense_config or models.VectorParams(size=dim, distance=distance)
    sparse = settings.sparse_config or models.SparseVectorParams(modifier=modifier)
    make_collection(
        collection,
        {settings.dense_vector_name: dense} if settings.dense_vector_name else dense,
        {settings.sparse_vector_name: sparse} if settings.enable_hybrid else None,
        metadata,
        quantization_config=settings.quantization_config,
        shard_number=settings.shard_number,
        replication_factor=settings.replication_factor,
        sharding_method=settings.sharding_method,
        write_consistency_factor=settings.write_consistency_factor,
    )
    for key in settings.shard_keys or ():
        collection.of_shard(key).create_shard_key(None, None)
    indexes: dict[str, Any] = {DOCUMENT_ID_KEY: models.PayloadSchemaType.KEYWORD} if settings.index_doc_id else {}
    collection.create_indexes(indexes | payload_indexes(settings))
