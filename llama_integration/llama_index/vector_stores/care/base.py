"""`CareVectorStore`: Qdrant for LlamaIndex, safe on collections that it did not create."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar

from llama_index.core.bridge.pydantic import PrivateAttr, ValidationError
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
from llama_index.vector_stores.care.filters import has_filters
from llama_index.vector_stores.care.index_nodes import IndexNodes
from llama_index.vector_stores.care.modes import is_lexical
from llama_index.vector_stores.care.once import OnceLogger
from llama_index.vector_stores.care.origin import Origin
from llama_index.vector_stores.care.points import as_result, check_points
from llama_index.vector_stores.care.reading import Reader, score_nodes
from llama_index.vector_stores.care.settings import (
    HasContract,
    QueryOptions,
    StoreSettings,
    contract_of,
    open_client,
    payload_indexes,
    shard_keys,
    wrong_setting,
)
from llama_index.vector_stores.care.sparse import StoreTerms, chosen_encoder, two_sided
from llama_index.vector_stores.care.writing import Writer, create_collection, deletion_filter, document_deletion
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from typing_extensions import override

from care_qdrant import Collection, Fallback, Fusion
from care_qdrant.contracts.contract import VectorContract
from care_qdrant.encoders.terms.sparse import SparseQueryEncoder, Terms
from care_qdrant.errors import FingerprintMismatch, InputError
from care_qdrant.forking import ForkPool
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME
from care_qdrant.search.fusion import DEFAULT_ALPHA, require_fusion
from care_qdrant.search.resolve import CHECK_SECONDS, CollectionResolver
from care_qdrant.search.resolved import ResolvedCollection, StoreConfig
from care_qdrant.search.retriever import SEARCH_POLICY

P = ParamSpec("P")
T = TypeVar("T")
Ids = list[str] | None
Filters = MetadataFilters | None

SAMPLE_POINTS = 32
"""Number of points that are read once to detect the layout of the payloads."""

_THREADS = ForkPool(32, "care-store")
"""Threads in which async calls run the sync ones, so that one client serves both."""


async def _in_thread(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Run a sync call in a thread; a cancelled caller no longer waits for it."""
    call = partial(copy_context().run, function, *args, **options)
    return await asyncio.get_running_loop().run_in_executor(_THREADS.executor, call)


class CareVectorStore(StoreSettings):
    """Searches one named vector of a collection with the model that made it, whichever tool wrote the payloads.

    It takes the settings of LlamaIndex's ``QdrantVectorStore``, and reads and writes the same payloads. It differs
    where that one fails silently:

    - It searches the vector that you name, even in a collection that also has an unnamed one, or that it creates.
    - With ``embedding=`` the collection's fingerprint is checked, and a collection that is created carries it; without,
      searching a collection with a model record logs a warning.
    - With ``embedding=`` the vectors of queries and added nodes are checked: vectors of another model are refused.
    - Requests go to the collection that was checked, even after its alias was switched to another one.
    - It reads payloads of LangChain, Haystack and plain points, with metadata, filters and document ids; a point
      without text does not fail a query.
    - `add` keeps the vectors that other models have on a point, and `get_nodes` returns all of them.
    - NE, NIN, CONTAINS, ANY and ALL filters mean what LlamaIndex says they mean, 2 is 2.0, and a key may
      have dots and spaces.
    - A deletion that would match every node is refused, and index and image nodes do not hide text nodes.
    - An MMR query returns diverse nodes, and unsupported modes are refused.
    - With ``embedding=``, where the collection has a BM25 vector of this package, queries are hybrid and added nodes
      get it; ``enable_hybrid=False`` searches the dense vector alone.
    - Scores of hybrid queries are from 0 to 1, and ``alpha=0.0`` means 0, sync and async.
    - One client serves sync and async callers, from any number of threads.
    - Searches and writes that fail temporarily are retried.

    Example:
        >>> from qdrant_client import QdrantClient
        >>> from llama_index.embeddings.care import CareEmbedding
        >>> from llama_index.vector_stores.care import CareVectorStore
        >>> client = QdrantClient(path="qdrant")
        >>> store = CareVectorStore("corpus", client, embedding=CareEmbedding())  # doctest: +SKIP
    """

    _client: QdrantClient = PrivateAttr()
    _named: Collection = PrivateAttr()
    _resolver: CollectionResolver = PrivateAttr()
    _origin: Origin = PrivateAttr()
    _finds_bm25: bool = PrivateAttr()
    _terms: StoreTerms = PrivateAttr()
    _reader: Reader = PrivateAttr()
    _writer: Writer = PrivateAttr()
    _index_nodes: IndexNodes = PrivateAttr(default_factory=IndexNodes)
    _warnings: OnceLogger = PrivateAttr(default_factory=OnceLogger)
    _searched: str | None = PrivateAttr(default=None)
    """Fingerprint of the model of the last check, which also creates the collection again after `clear`."""
    _is_cleared: bool = PrivateAttr(default=False)
    """Whether `clear` has deleted the collection, which may not exist again yet."""

    def __init__(
        self,
        collection_name: str,
        client: QdrantClient | None = None,
        aclient: AsyncQdrantClient | None = None,
        *,
        embedding: HasContract | None = None,
        other_models: Sequence[HasContract] = (),
        fingerprint: str | None = None,
        vector_name: str | None = None,
        sparse_vector_name: str | None = None,
        sparse_encoder: SparseQueryEncoder | None = None,
        text_field: str | None = None,
        fusion: Fusion = "linear",
        fallback: Fallback | None = None,
        check_seconds: float = CHECK_SECONDS,
        check_vectors: bool = True,
        dense_vector_name: str | None = None,
        **settings: Any,
    ) -> None:
        """Open a collection, or prepare one that the first `add` creates.

        Args:
            collection_name: Name or alias.
            client: An open client, for sync and async calls.
            aclient: Instead of ``client``: a sync client with the same options is opened, also for async calls.
            embedding: Model of the query vectors, whose fingerprint the collection must carry.
            other_models: Embeddings to which ``care switch`` may switch the collection, or from which it did. At its
                next check the store uses the vector that the collection names as active, whichever of its embeddings
                the index has: queries and nodes with the vector of another one are encoded again by the active one.
            fingerprint: The same as ``embedding``, if only the fingerprint is known.
            vector_name: Name of the dense vector, ``""`` for the unnamed one. None takes the vector of the embedding,
                or the only one, and refuses several.
            sparse_vector_name: Name of the sparse vector for hybrid queries; None takes the only one.
            sparse_encoder: Encoder of added nodes and of queries in modes hybrid and sparse, in place of BM25 by this
                package: the server's own, or a model of FastEmbed (`care_qdrant.encoders.terms.sparse`). It needs
                ``sparse_vector_name``, and nothing checks that it fits the stored vectors.
            text_field: Payload field of the text, such as ``"body"`` or ``"document.body"``; None detects it.
            fusion: Fusion of hybrid queries with BM25 (`care_qdrant.search.fusion`); with another encoder, ``rrf``
                weighs ranks and ``linear`` scales scores as LlamaIndex does. ``hybrid_fusion_fn`` replaces it.
            fallback: The model that made the vectors, for the queries with a text that a learned encoder is least sure
                of (`care_qdrant.search.fallback`).
            check_seconds: Seconds until the collection is checked again, with two short requests: an alias may be
                switched to vectors of another model at any time.
            check_vectors: Compare the vector of each query that has a text, and of two nodes of each `add` (with
                ``other_models``, of all), with those that ``embedding`` makes, and refuse others; mostly this reads the
                embedding's cache of queries. Where it encodes no documents (``documents=False``, or without torch),
                only the dimension of nodes is checked.
                False for vectors that are of another text on purpose, as with HyDE.
            dense_vector_name: The stock store's name for ``vector_name``.
            settings: Other fields of this class. With ``embedding=`` or ``fingerprint=``, where the collection has
                a BM25 vector of this package, ``enable_hybrid`` is on by default: queries of the default mode are
                hybrid.

        Raises:
            InputError: The settings contradict each other; the vector does not exist; no point of the collection has a
                text; or ``aclient`` is an embedded database, which only one client can open.
            ContractError: Another model made the vectors.
        """
        require_fusion(fusion)
        contract = contract_of(embedding)
        if other_models and contract is None:
            raise InputError(
                "other_models= needs embedding=, the model whose queries the collection is searched by first"
            )
        if contract is not None and fingerprint not in (None, contract.fingerprint):
            raise FingerprintMismatch(f"embedding= is {contract.model} ({contract.fingerprint[:12]}), not fingerprint=")
        encoder = chosen_encoder(sparse_encoder, sparse_vector_name, settings)
        # Attaching BM25 must not change the results of readers with another model, whose scores are not known.
        is_known = embedding is not None or fingerprint is not None
        finds_bm25 = settings.get("enable_hybrid") is None and encoder is None and is_known
        hybrid = bool(settings.pop("enable_hybrid", None)) or sparse_encoder is not None
        vector_name = dense_vector_name if vector_name is None else vector_name
        own_name = "text-dense" if contract is None else contract.model
        names = {
            "collection_name": collection_name,
            "dense_vector_name": own_name if vector_name is None else vector_name,
            "sparse_vector_name": sparse_vector_name or (SPARSE_VECTOR_NAME if encoder is None else "text-sparse-new"),
        }
        try:
            super().__init__(**{**settings, **names, "enable_hybrid": hybrid})
        except ValidationError as error:
            raise wrong_setting(error, type(self), "setting", "CareVectorStore") from None
        self._client = client or open_client(self, aclient)
        known = () if embedding is None else (embedding, *other_models)
        self._origin = Origin.of(collection_name, known, is_checked=check_vectors)
        self._finds_bm25 = finds_bm25
        self._terms = StoreTerms(encoder)
        config = StoreConfig(
            sparse=None if finds_bm25 else hybrid,
            bm25=hybrid and encoder is None,
            vector_name=vector_name,
            sparse_vector_name=sparse_vector_name,
            fingerprint=fingerprint,
            only_vector=True,
            text_field=text_field,
            sample_points=SAMPLE_POINTS,
        )
        if known:
            first, *others = (_searching_with(model, config) for model in known)
            config = replace(first, others=tuple(others))
        policy = replace(SEARCH_POLICY, attempts=max(1, self.max_retries))
        self._named = Collection(self._client, collection_name, policy)
        self._resolver = CollectionResolver(self._named, config, check_seconds=check_seconds)
        self._reader = Reader(
            self._resolver, self._terms, fusion, fallback, finds_bm25, self._index_nodes, self._warnings
        )
        self._writer = Writer(self._terms, self._warnings)
        if self._named.exists():
            resolved = self._adopt(self._resolver.resolve())
            resolved.collection.create_indexes(payload_indexes(self))

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareVectorStore"

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a store that shares the client and its checks: an open client has no copy."""
        return self.__copy__()

    @override
    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            f"CareVectorStore({self.collection_name!r}) holds an open client, which cannot be pickled: open the store "
            "in the other process"
        )

    @property
    @override
    def client(self) -> QdrantClient:
        return self._client

    @property
    def contract(self) -> VectorContract | None:
        """Record of the model that this store was opened for; None when it was opened for none."""
        return self._resolver.config.contract

    def set_query_functions(
        self,
        sparse_doc_fn: Terms | None = None,
        sparse_query_fn: Terms | None = None,
        hybrid_fusion_fn: Callable[..., VectorStoreQueryResult] | None = None,
    ) -> None:
        """Replace the sparse encoder, the fusion of hybrid queries, or both.

        Raises:
            InputError: A sparse encoder for one side only.
        """
        encoder = two_sided(sparse_doc_fn, sparse_query_fn)
        if encoder is not None:
            self._terms.encoder = encoder
            config = self._resolver.config
            others = tuple(replace(other, bm25=False) for other in config.others)
            self._resolver.config = replace(config, bm25=False, others=others)
            self._resolver.forget()
        self.hybrid_fusion_fn = hybrid_fusion_fn or self.hybrid_fusion_fn

    # The public methods. Each async method runs the sync one in a thread.

    @override
    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        given = QueryOptions.of(options)

        def search(resolved: ResolvedCollection) -> VectorStoreQueryResult:
            vector = query.query_embedding
            if vector is None or is_lexical(query):
                return self._reader.search(resolved, query, given, self)
            own = self._origin.query_vector(resolved.config, query.query_str or "", vector)
            return self._reader.search(resolved, replace(query, query_embedding=own), given, self)

        return self._use(search, as_result([]))

    @override
    async def aquery(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        return await _in_thread(self.query, query, **options)

    def score(self, query_embedding: list[float], node_ids: Sequence[str], query_str: str = "") -> dict[str, float]:
        """Return the cosine of a query with the stored vector of each node, or the negative distance of the two.

        Args:
            query_embedding: Vector of the query, ``(dim,)``.
            node_ids: Nodes to score; one without a vector gets no score.
            query_str: Text of the query, which a store with ``other_models`` needs.
        """
        if not node_ids:
            return {}

        def score(resolved: ResolvedCollection) -> dict[str, float]:
            if len(self._origin.models) == 1:
                return score_nodes(resolved, query_embedding, node_ids)
            return score_nodes(
                resolved, self._origin.query_vector(resolved.config, query_str, query_embedding), node_ids
            )

        return self._use(score, {})

    async def ascore(
        self, query_embedding: list[float], node_ids: Sequence[str], query_str: str = ""
    ) -> dict[str, float]:
        """Return the same as `score`."""
        return await _in_thread(self.score, query_embedding, node_ids, query_str)

    @override
    def get_nodes(
        self, node_ids: Ids = None, filters: Filters = None, limit: int | None = None, shard_identifier: Any = None
    ) -> list[BaseNode]:
        shard = shard_keys(self, shard_identifier)
        return self._use(lambda resolved: self._reader.nodes(resolved, node_ids, filters, limit, shard), [])

    @override
    async def aget_nodes(
        self, node_ids: Ids = None, filters: Filters = None, limit: int | None = None, shard_identifier: Any = None
    ) -> list[BaseNode]:
        return await _in_thread(self.get_nodes, node_ids, filters, limit, shard_identifier)

    @override
    def add(self, nodes: Sequence[BaseNode], shard_identifier: Any = None, **options: Any) -> list[str]:
        if not nodes:
            return []
        check_points(nodes)
        self._index_nodes.note(nodes)
        if not self._named.exists():
            first = self._resolver.config
            config = next((other for other in first.others if other.expected == self._searched), first)
            create_collection(self._named, self, config, self._terms.encoder, self._origin.nodes(config, nodes))
            self._resolver.forget()
        shard = shard_keys(self, shard_identifier)
        return self._use(
            lambda resolved: self._writer.write(resolved, self._origin.nodes(resolved.config, nodes), shard, self), []
        )

    @override
    async def async_add(self, nodes: Sequence[BaseNode], shard_identifier: Any = None, **options: Any) -> list[str]:
        return await _in_thread(self.add, nodes, shard_identifier)

    @override
    def delete(self, ref_doc_id: str, shard_identifier: Any = None, **options: Any) -> None:
        if not ref_doc_id or not isinstance(ref_doc_id, str):
            raise InputError(f"delete() was given the document id {ref_doc_id!r}; nothing was deleted")
        if ref_doc_id == "None":
            raise InputError(
                "delete() was given the document id 'None', which LlamaIndex writes for every node that has no "
                "document; nothing was deleted. delete_nodes(node_ids=[...]) deletes nodes by their own ids"
            )
        self._delete(lambda resolved: document_deletion(resolved, ref_doc_id), shard_identifier)

    @override
    async def adelete(self, ref_doc_id: str, shard_identifier: Any = None, **options: Any) -> None:
        await _in_thread(self.delete, ref_doc_id, shard_identifier)

    @override
    def delete_nodes(
        self, node_ids: Ids = None, filters: Filters = None, shard_identifier: Any = None, **options: Any
    ) -> None:
        """Delete the nodes that have one of the ids and pass the filters; None selects all.

        Raises:
            InputError: Neither ids nor filters are given, or a filter that rules nodes out, such as NE, names a key
                that no point has: every node would be deleted. `clear` is for that.
        """
        if node_ids is None and not has_filters(filters):
            raise InputError(
                "delete_nodes() was given neither node ids nor filters, and every node would go; nothing was deleted. "
                "clear() empties the collection"
            )
        if node_ids is not None and not node_ids:
            return
        self._delete(lambda resolved: deletion_filter(resolved, node_ids, filters), shard_identifier)

    @override
    async def adelete_nodes(
        self, node_ids: Ids = None, filters: Filters = None, shard_identifier: Any = None, **options: Any
    ) -> None:
        await _in_thread(self.delete_nodes, node_ids, filters, shard_identifier)

    @override
    def clear(self) -> None:
        if behind := self._named.aliases().get(self.collection_name):
            raise InputError(
                f"{self.collection_name!r} is an alias of collection {behind!r}, and Qdrant deletes none by its alias: "
                "open the store by the name of the collection; nothing was deleted"
            )
        self._named.drop()
        self._resolver.forget()
        self._is_cleared = True

    @override
    async def aclear(self) -> None:
        await _in_thread(self.clear)

    def _use(self, work: Callable[[ResolvedCollection], T], nothing: T) -> T:
        """Run work on the collection, which is checked if due; run it again if the collection was replaced.

        After `clear`, and until the collection exists again, it returns ``nothing``.
        """
        self._is_cleared = self._is_cleared and not self._named.exists()
        if self._is_cleared:
            return nothing
        return self._resolver.use(lambda resolved: work(self._adopt(resolved)))

    def _adopt(self, resolved: ResolvedCollection) -> ResolvedCollection:
        """Write the names of the chosen vectors into the fields, and log warnings about the collection once."""
        self.dense_vector_name, self._searched = resolved.vector_name or "", resolved.config.expected
        if resolved.sparse_vector_name is not None:
            self.sparse_vector_name = resolved.sparse_vector_name
        if self._finds_bm25:
            self.enable_hybrid = resolved.bm25 is not None
        if resolved.unfinished is not None:
            self._warnings.warn("unfinished", "%s", resolved.unfinished)
        if resolved.unchecked is not None:
            self._warnings.warn(
                "unchecked",
                "vector %r of collection %r was made by %s (%s), and the model of the queries is not known: give "
                "CareVectorStore(..., embedding=), and another model is refused",
                resolved.vector_name,
                self.collection_name,
                resolved.unchecked.model,
                resolved.unchecked.fingerprint[:12],
            )
        return resolved

    def _delete(self, where: Callable[[ResolvedCollection], models.Filter], shard: Any) -> None:
        key = shard_keys(self, shard)
        self._use(lambda resolved: resolved.collection.of_shard(key).delete_where(where(resolved)), None)


def _searching_with(model: HasContract, config: StoreConfig) -> StoreConfig:
    return replace(
        config,
        contract=contract_of(model),
        encode=getattr(model, "encode_query", None),
        alpha=getattr(model, "alpha", DEFAULT_ALPHA),
        terms=getattr(model, "query_terms", None),
    )
