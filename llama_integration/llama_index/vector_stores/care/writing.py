"""Writes for `CareVectorStore`: creates its collection, makes points of nodes, and filters of deletions."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.embeddings.care.base import embeds_other_metadata
from llama_index.vector_stores.care.filters import (
    DOCUMENT_ID_KEY,
    build_filter,
    document_filter,
    has_filters,
    require_selective,
)
from llama_index.vector_stores.care.once import OnceLogger
from llama_index.vector_stores.care.points import build_points, changed_texts, having_ids, writes
from llama_index.vector_stores.care.settings import StoreSettings, payload_indexes
from llama_index.vector_stores.care.sparse import StoreTerms
from qdrant_client import models

from care_qdrant import Collection
from care_qdrant.contracts.contract import SparseContract, contract_metadata
from care_qdrant.encoders.terms.sparse import NATIVE_BM25, SparseQueryEncoder
from care_qdrant.errors import InputError, counted
from care_qdrant.qdrant.create import make_collection
from care_qdrant.qdrant.sender import send_all
from care_qdrant.search.conditions import Keys
from care_qdrant.search.resolved import ResolvedCollection, StoreConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes nodes to a collection that was checked; vectors of other models on the same points stay."""

    terms: StoreTerms
    warnings: OnceLogger

    def write(
        self, resolved: ResolvedCollection, nodes: Sequence[BaseNode], shard: Any | None, settings: StoreSettings
    ) -> list[str]:
        """Write nodes, ``parallel`` requests at a time, and return their ids."""
        if resolved.layout is not None and resolved.layout.tool == "care":
            self._warn_of_metadata(nodes, settings)
        write = partial(self._write_batch, resolved, resolved.collection.of_shard(shard), settings)
        with ThreadPoolExecutor(settings.parallel, thread_name_prefix="care-add") as threads:
            outdated = sum(threads.map(write, iter_batch(nodes, settings.batch_size)))
        if outdated:
            logger.warning(
                "collection %r: %s a new text, and vectors of other models that were made of the old one: "
                "let the pipelines that made them run again (`care attach` for those that it made)",
                settings.collection_name,
                counted(outdated, "point", "have"),
            )
        return [node.node_id for node in nodes]

    def _write_batch(
        self,
        resolved: ResolvedCollection,
        collection: Collection,
        settings: StoreSettings,
        nodes: Sequence[BaseNode],
    ) -> int:
        """Write nodes, and return how many have a new text."""
        terms = {}
        if settings.enable_hybrid and resolved.sparse_vector_name is not None:
            terms[resolved.sparse_vector_name] = self.terms.of_nodes(resolved, nodes)
        points = build_points(nodes, resolved.vector_name or "", terms, resolved.layout, resolved.config.expected)
        there = collection.retrieve([point.id for point in points]) if resolved.has_other_vectors else {}
        for write in writes(points, there.values()):
            send_all(collection, write)
        if resolved.has_other_vectors and len(there) < len(points):
            others = sorted({*resolved.schema.dense, *resolved.schema.sparse} - {resolved.vector_name or "", *terms})
            self.warnings.warn(
                "new points",
                "collection %r: new points have no vector %s, so those who search by it miss them until the program "
                "that makes it has run (`care attach` for one that it made)",
                settings.collection_name,
                " and ".join(repr(name) if name else "(unnamed)" for name in others),
            )
        return len(changed_texts(points, there.values(), resolved.layout))

    def _warn_of_metadata(self, nodes: Sequence[BaseNode], settings: StoreSettings) -> None:
        leaking = next((node for node in nodes if embeds_other_metadata(node)), None)
        if leaking is not None:
            self.warnings.warn(
                "metadata",
                "node %s of collection %r was embedded with its metadata in front of the text, unlike what care-ingest "
                "wrote: take transformations=[CareNodeParser(embedding=...)], or put CareNodeText() behind another "
                "splitter (keys: %s)",
                leaking.node_id,
                settings.collection_name,
                ", ".join(sorted(leaking.metadata)),
            )


def create_collection(
    collection: Collection,
    settings: StoreSettings,
    config: StoreConfig,
    encoder: SparseQueryEncoder | None,
    nodes: Sequence[BaseNode],
) -> None:
    """Create a collection with named vectors and, when the model is known, its contract.

    Args:
        collection: Name without a collection yet, not an alias.
        settings: Names and parameters of the vectors, shards and indexes.
        config: The model of the vectors, and whether the sparse vector is BM25 by this package.
        encoder: Sparse encoder in place of BM25 by this package.
        nodes: First nodes to write, with their vectors: dimension and mean length are taken from them.
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


def deletion_filter(
    resolved: ResolvedCollection, node_ids: Sequence[str] | None, filters: MetadataFilters | None
) -> models.Filter:
    """Return the filter of the nodes to delete, which have one of the ids and pass the filters.

    Raises:
        InputError: Every node would pass: a filter rules nodes out by a key that no point has.
    """
    must: list[models.Condition] = [] if node_ids is None else [having_ids(node_ids)]
    if filters is not None and has_filters(filters):
        resolved.collection.refresh()  # what was there at the last check may be gone
        keys = Keys.of(resolved.collection, is_exact=True)
        require_selective(filters, resolved.collection, keys)
        must.append(build_filter(filters, keys))
    return models.Filter(must=must)


def document_deletion(resolved: ResolvedCollection, document_id: str) -> models.Filter:
    """Return the filter of the nodes of a document, by the keys that hold ids and nothing else.

    Raises:
        InputError: Only a key that may hold something else has the id, such as the ``source`` of LangChain's points.
    """
    where = document_filter([document_id], resolved.layout, to_delete=True)
    if resolved.layout is None or resolved.layout.certain_paths == resolved.layout.document_paths:
        return where

    def some(points: models.Filter) -> bool:
        return any(resolved.collection.scroll("looking for a document", where=points, limit=1, payload=False))

    if not some(where) and some(document_filter([document_id], resolved.layout)):
        guess = next(path for path in resolved.layout.document_paths if path not in resolved.layout.certain_paths)
        key = guess.partition(".")[2]
        raise InputError(
            f"no point of {resolved.schema.name!r} has the document id {document_id!r}; points have it as their "
            f"{key!r}, which may be a kind of text and not one document; nothing was deleted. To delete them all: "
            f"delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key={key!r}, value={document_id!r})]))"
        )
    return where
