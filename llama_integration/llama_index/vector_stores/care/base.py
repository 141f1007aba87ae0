"""`CareVectorStore`: LlamaIndex's Qdrant store, made safe on collections that it did not create."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from typing import Any, Protocol, cast

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.care.facade import AsyncView
from llama_index.vector_stores.care.schema import Wanted
from llama_index.vector_stores.care.steps import arun, run
from llama_index.vector_stores.care.writing import Writing
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index.vector_stores.qdrant.base import DEFAULT_DENSE_VECTOR_NAME
from llama_index.vector_stores.qdrant.utils import HybridFusionCallable, SparseEncoderCallable
from qdrant_client import AsyncQdrantClient, QdrantClient
from typing_extensions import override

from care_qdrant.errors import InputError
from care_qdrant.search.fusion import Fusion
from care_qdrant.search.retriever import CHECK_SECONDS
from care_qdrant.store.contracts import VectorContract
from care_qdrant.store.create import SPARSE_VECTOR_NAME

_STOCK_SETTINGS = frozenset(signature(QdrantVectorStore.__init__).parameters) | QdrantVectorStore.model_fields.keys()
"""What the stock store's constructor takes, and what its `to_dict` gives."""


class HasContract(Protocol):
    """A `CareEmbedding`, a `CareModel`: what knows the model that makes the vectors."""

    def contract(self) -> VectorContract:
        """Give what a collection must say of its vectors."""


class CareVectorStore(Writing):
    """Searches one named vector of a collection, with the model that made it, whoever wrote the payloads.

    What differs from ``QdrantVectorStore``, which fails silently in each case:

    - The vector is the one that was asked for, also beside an unnamed one, and also in a collection that is created.
    - With ``embedding=`` the collection's fingerprint is checked, and a collection that is created carries it; without,
      a collection that says what made its vectors is searched with a warning.
    - Payloads of LangChain, Haystack and plain points are read with ids, metadata, filters and reference ids; a point
      without text does not fail a query.
    - `add` keeps the vectors that other models have on a point, and `get_nodes` gives all of them.
    - NE, NIN, CONTAINS, ANY and ALL filters mean what LlamaIndex says they mean, and 2 is 2.0.
    - An MMR query gives diverse answers, and a query of a mode that is not answered is refused.
    - Hybrid queries use the collection's BM25 vector; scores are in 0…1, and ``alpha=0.0`` is 0, sync and async.
    - One client serves sync and async callers.

    Example:
        >>> from qdrant_client import QdrantClient
        >>> from llama_index.embeddings.care import CareEmbedding
        >>> from llama_index.vector_stores.care import CareVectorStore
        >>> client = QdrantClient(path="qdrant")
        >>> store = CareVectorStore("corpus", client, embedding=CareEmbedding())  # doctest: +SKIP
    """

    def __init__(
        self,
        collection_name: str,
        client: QdrantClient | None = None,
        aclient: AsyncQdrantClient | None = None,
        *,
        embedding: HasContract | None = None,
        fingerprint: str | None = None,
        vector_name: str | None = None,
        sparse_vector_name: str | None = None,
        text_field: str | None = None,
        fusion: Fusion = "linear",
        check_seconds: float = CHECK_SECONDS,
        dense_vector_name: str | None = None,
        **settings: Any,
    ) -> None:
        """Open a collection, or prepare one that the first `add` creates.

        Args:
            collection_name: Name or alias.
            client: An open client; enough for sync and async calls.
            aclient: Only where async calls shall have a client of their own.
            embedding: What makes the query vectors: the collection must carry its fingerprint.
            fingerprint: The same, when only the fingerprint is known.
            vector_name: Of the dense vector; None takes the one of the embedding, or the only one.
            sparse_vector_name: For hybrid queries; None takes the only one.
            text_field: Where payloads hold the text, as ``"body"`` or ``"document.body"``; None finds out.
            fusion: Of hybrid queries with BM25 (`care_qdrant.search.fusion`); ``hybrid_fusion_fn`` takes its place.
            check_seconds: How long a check of the collection holds; it costs two short requests. An alias may be
                switched to vectors of another model at any time.
            dense_vector_name: The stock store's word for ``vector_name``.
            settings: Of ``QdrantVectorStore``: they are its own, and passed on as they are.

        Raises:
            InputError: there is no such setting; the vector is not there; or no point of the collection has a text.
            ContractError: another model made the vectors.
        """
        _require_known(settings)
        contract = embedding.contract() if embedding is not None else None
        vector_name = vector_name or dense_vector_name
        default_name = contract.model if contract is not None else DEFAULT_DENSE_VECTOR_NAME
        hybrid = bool(settings.get("enable_hybrid"))
        own_sparse = bool(settings.get("sparse_query_fn") or settings.get("fastembed_sparse_model"))
        if settings.get("sparse_doc_fn") and not own_sparse:
            raise InputError("sparse_doc_fn= without sparse_query_fn=: queries would be cut into other terms")
        if hybrid and not own_sparse:
            settings.update(sparse_doc_fn=self._bm25_of_documents, sparse_query_fn=self._bm25_of_queries)
        # By name, since `Writing` has no constructor and a type checker takes it for pydantic's own.
        QdrantVectorStore.__init__(
            self,
            collection_name,
            client=client,
            aclient=aclient,
            dense_vector_name=vector_name or default_name,
            sparse_vector_name=sparse_vector_name or (SPARSE_VECTOR_NAME if not own_sparse else None),
            **settings,
        )
        if client is not None and aclient is None:
            self._aclient = cast(AsyncQdrantClient, AsyncView(client))
        self._fusion = fusion
        self._check_seconds = check_seconds
        self._own_fusion = settings.get("hybrid_fusion_fn")
        self._wanted = Wanted(
            vector_name=vector_name,
            sparse_vector_name=sparse_vector_name,
            contract=contract,
            fingerprint=fingerprint,
            text_field=text_field,
            hybrid=self.enable_hybrid,
            bm25=hybrid and not own_sparse,
        )
        if self._client is not None and self._collection_initialized:
            run(self._pin(), self._client)

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareVectorStore"

    @override
    def set_query_functions(
        self,
        sparse_doc_fn: SparseEncoderCallable | None = None,
        sparse_query_fn: SparseEncoderCallable | None = None,
        hybrid_fusion_fn: HybridFusionCallable | None = None,
    ) -> None:
        """Exchange the sparse encoder, the fusion of hybrid queries, or both; what is not given stays.

        Raises:
            InputError: a sparse encoder for one side only.
        """
        if (sparse_doc_fn is None) != (sparse_query_fn is None):
            raise InputError("a sparse encoder has two sides: give sparse_doc_fn= and sparse_query_fn=")
        if sparse_doc_fn is not None:
            self._sparse_doc_fn, self._sparse_query_fn = sparse_doc_fn, sparse_query_fn
            self._wanted, self._bm25 = replace(self._wanted, bm25=False), None
            self._pinned = None
        if hybrid_fusion_fn is not None:
            self._own_fusion = hybrid_fusion_fn

    @property
    def contract(self) -> VectorContract | None:
        """What the model that this store was opened for makes; None when it was opened for none."""
        return self._wanted.contract

    @override
    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        return run(self._query(query, options), self._client)

    @override
    async def aquery(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        self._ensure_async_client()
        return await arun(self._query(query, options), self._aclient)

    def score(self, query_embedding: list[float], node_ids: Sequence[str]) -> dict[str, float]:
        """Give the cosine of a query with the stored vector of each node; nodes without one are not in the answer."""
        return run(self._score(query_embedding, node_ids), self._client)

    async def ascore(self, query_embedding: list[float], node_ids: Sequence[str]) -> dict[str, float]:
        """Give the same as `score`."""
        self._ensure_async_client()
        return await arun(self._score(query_embedding, node_ids), self._aclient)

    @override
    def get_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        limit: int | None = None,
        shard_identifier: Any | None = None,
    ) -> list[BaseNode]:
        return run(self._get_nodes(node_ids, filters, limit, shard_identifier), self._client)

    @override
    async def aget_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        limit: int | None = None,
        shard_identifier: Any | None = None,
    ) -> list[BaseNode]:
        self._ensure_async_client()
        return await arun(self._get_nodes(node_ids, filters, limit, shard_identifier), self._aclient)

    @override
    def add(self, nodes: Sequence[BaseNode], shard_identifier: Any | None = None, **options: Any) -> list[str]:
        if run(self._merge(nodes, shard_identifier), self._client):
            return [node.node_id for node in nodes]
        return super().add(list(nodes), shard_identifier, **options)

    @override
    async def async_add(
        self, nodes: Sequence[BaseNode], shard_identifier: Any | None = None, **options: Any
    ) -> list[str]:
        self._ensure_async_client()
        if await arun(self._merge(nodes, shard_identifier), self._aclient):
            return [node.node_id for node in nodes]
        return await super().async_add(list(nodes), shard_identifier, **options)

    @override
    def delete(self, ref_doc_id: str, shard_identifier: Any | None = None, **options: Any) -> None:
        run(self._delete_document(ref_doc_id, shard_identifier), self._client)

    @override
    async def adelete(self, ref_doc_id: str, shard_identifier: Any | None = None, **options: Any) -> None:
        self._ensure_async_client()
        await arun(self._delete_document(ref_doc_id, shard_identifier), self._aclient)

    @override
    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        shard_identifier: Any | None = None,
        **options: Any,
    ) -> None:
        run(self._delete_nodes(node_ids, filters, shard_identifier), self._client)

    @override
    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        shard_identifier: Any | None = None,
        **options: Any,
    ) -> None:
        self._ensure_async_client()
        await arun(self._delete_nodes(node_ids, filters, shard_identifier), self._aclient)

    @override
    def clear(self) -> None:
        super().clear()
        self._pinned = None

    @override
    async def aclear(self) -> None:
        await super().aclear()
        self._pinned = None


def _require_known(settings: Iterable[str]) -> None:
    """Refuse what the stock store would swallow: a misspelt setting would leave its default in force."""
    for name in settings:
        if name not in _STOCK_SETTINGS:
            own = signature(CareVectorStore.__init__).parameters
            close = get_close_matches(name, [*own, *_STOCK_SETTINGS], n=1)
            raise InputError(
                f"CareVectorStore has no setting {name!r}" + (f"; is {close[0]!r} meant?" if close else "")
            )
