"""Code paths from a query to scored documents: LlamaIndex's retriever over our classes, and the core's retriever."""

from collections.abc import Sequence
from typing import Literal, Protocol

from qdrant_client import QdrantClient, models

from care_benchmarks.systems import EvaluatedSystem
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import point_id

Through = Literal["llama-index", "core"]


class QueryPath(Protocol):
    """A code path from a query to scored documents."""

    description: str
    """The classes that a query passes through."""

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Return document id → score of the best ``top_k``, restricted to ``among`` if it is set."""


class LlamaIndexPath:
    """LlamaIndex's vector retriever over `CareEmbedding` and `CareVectorStore`."""

    description = "LlamaIndex: CareEmbedding, CareVectorStore, VectorIndexRetriever"

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        system: EvaluatedSystem,
        params: models.SearchParams | None,
        query_task: str | None = None,
    ) -> None:
        """Open an ingested collection."""
        from llama_index.core import VectorStoreIndex
        from llama_index.embeddings.care import CareEmbedding
        from llama_index.vector_stores.care import CareVectorStore

        embedding = CareEmbedding(
            model=system.source,
            precision=system.precision,
            device=system.device,
            documents=False,
            query_task=query_task,
            # Repeated queries must be encoded again, or the cache would be timed.
            query_cache_size=0,
            on_truncation="ignore",
        )
        store = CareVectorStore(collection, client, embedding=embedding, enable_hybrid=False)
        self._index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
        self._options = {"search_params": params}

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Return document id → score."""
        from llama_index.core.retrievers import VectorIndexRetriever

        retriever = VectorIndexRetriever(
            self._index,
            similarity_top_k=top_k,
            node_ids=None if among is None else [point_id(document) for document in among],
            vector_store_kwargs=self._options,
        )
        return {str(found.node.ref_doc_id): float(found.score or 0.0) for found in retriever.retrieve(query)}


class CorePath:
    """The core's `Retriever`."""

    description = "care_qdrant.Retriever"

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Return document id → score."""
        only = None
        if among is not None:
            only = models.Filter(must=[models.HasIdCondition(has_id=[point_id(document) for document in among])])
        [hits] = self._retriever.search([query], top_k, only)
        return {hit.document_id: hit.score for hit in hits}
