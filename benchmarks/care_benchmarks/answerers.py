"""The two paths from a query to scored documents: LlamaIndex's retriever over our classes, and the core's own."""

from collections.abc import Sequence
from typing import Literal, Protocol

from qdrant_client import QdrantClient, models

from care_benchmarks.contestants import Contestant
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import point_id

Through = Literal["llama-index", "core"]


class Answerer(Protocol):
    """One way from a query to scored documents."""

    path: str
    """The classes that a query goes through."""

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Give document id → score of the best ``top_k``; only of those in ``among`` where it is given."""


class LlamaIndexAnswerer:
    """Answers by LlamaIndex's vector retriever, over `CareEmbedding` and `CareVectorStore`."""

    path = "LlamaIndex: CareEmbedding, CareVectorStore, VectorIndexRetriever"

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        contestant: Contestant,
        *,
        query_prompt: str | None,
        params: models.SearchParams | None,
    ) -> None:
        """Open a collection that ingestion has filled.

        Args:
            client: An open Qdrant.
            collection: Its name.
            contestant: A dense one; its model is opened once more, as a server would, for queries alone.
            query_prompt: Put before each query; None is the model's own.
            params: Of Qdrant's search.
        """
        from llama_index.core import VectorStoreIndex
        from llama_index.embeddings.care import CareEmbedding
        from llama_index.vector_stores.care import CareVectorStore

        embedding = CareEmbedding(
            model=contestant.source,
            precision=contestant.precision,
            device=contestant.device,
            query_prompt=query_prompt,
            documents=False,
            # Repeated queries must be encoded again, or the speed would be that of the cache.
            query_cache_size=0,
            on_truncation="ignore",
        )
        store = CareVectorStore(collection, client, embedding=embedding)
        self._index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
        self._options = {"search_params": params}

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Give document id → score."""
        from llama_index.core.retrievers import VectorIndexRetriever

        retriever = VectorIndexRetriever(
            self._index,
            similarity_top_k=top_k,
            node_ids=None if among is None else [point_id(document) for document in among],
            vector_store_kwargs=self._options,
        )
        return {str(found.node.ref_doc_id): float(found.score or 0.0) for found in retriever.retrieve(query)}


class CoreAnswerer:
    """Answers by the core's `Retriever`."""

    path = "care_qdrant.Retriever"

    def __init__(self, retriever: Retriever) -> None:
        """Take a retriever that is set up."""
        self._retriever = retriever

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Give document id → score."""
        only = None
        if among is not None:
            only = models.Filter(must=[models.HasIdCondition(has_id=[point_id(document) for document in among])])
        [hits] = self._retriever.search([query], top_k, only)
        return {hit.document_id: hit.score for hit in hits}
