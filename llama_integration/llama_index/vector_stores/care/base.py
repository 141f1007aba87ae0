"""`CareVectorStore`: Qdrant for LlamaIndex, safe on collections that it did not create."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, model_validator
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.embeddings.care.base import embeds_other_metadata
from llama_index.vector_stores.care.filters import (
    DOCUMENT_ID_KEY,
    document_filter,
    is_empty,
    node_filter,
    passing_without,
    query_filter,
    require_selective,
)
from llama_index.vector_stores.care.index_nodes import IndexNodes
from llama_index.vector_stores.care.modes import LEXICAL, is_lexical, require_mode
from llama_index.vector_stores.care.origin import check_nodes, check_query
from llama_index.vector_stores.care.points import (
    as_node,
    as_point_id,
    as_result,
    build_points,
    changed_texts,
    check_points,
    having_ids,
    writes,
)
from llama_index.vector_stores.care.scores import choose_diverse, clip_scores, fuse_by_scaled_score
from llama_index.vector_stores.care.sparse import chosen_encoder, two_sided
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from qdrant_client.local.async_qdrant_local import AsyncQdrantLocal
from typing_extensions import override

from care_qdrant.contracts.contract import SparseContract, VectorContract, contract_metadata
from care_qdrant.contracts.paths import readings
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.sparse import NATIVE_BM25, SparseQuery, SparseQueryEncoder, Terms, document_terms
from care_qdrant.errors import InputError
from care_qdrant.forking import ForkPool
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, make_collection
from care_qdrant.qdrant.sender import send_all
from care_qdrant.search.conditions import Keys, no_such_key
from care_qdrant.search.fallback import Fallback
from care_qdrant.search.fusion import Fusion
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolve import CHECK_SECONDS, CollectionResolver, ResolvedCollection, StoreConfig
from care_qdrant.search.retriever import SEARCH_POLICY
from care_qdrant.search.script import script_note
from care_qdrant.types import Hit

P = ParamSpec("P")
T = TypeVar("T")
Ids = list[str] | None
Filters = MetadataFilters | None

SAMPLE_POINTS = 32
"""Points that are read once to find out who wrote the payloads."""

_THREADS = ForkPool(32, "care-store")
"""Async calls wait for sync ones in these, so that one client serves both and nothing is written twice."""

logger = logging.getLogger(__name__)

_NOT_RESTRICTED = (
    "collection %r: a query names index and image nodes alone, as the retriever of a LlamaIndex index does in every "
    "query when the index holds such a node. It is not restricted to them, so that text nodes are found; to restrict "
    "it, give qdrant_filters= (of a retriever: vector_store_kwargs=)"
)


async def _in_thread(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return what a sync call returns; a caller that is cancelled no longer waits for it."""
    call = partial(copy_context().run, function, *args, **options)
    return await asyncio.get_running_loop().run_in_executor(_THREADS.executor, call)


class HasContract(Protocol):
    """A `CareEmbedding`, a `CareModel`: what knows the model that makes the vectors."""

    def contract(self) -> VectorContract:
        """Return what a collection must say of its vectors."""


class CareVectorStore(BasePydanticVectorStore):
    """Searches one named vector of a collection, with the model that made it, whoever wrote the payloads.

    It takes the settings of LlamaIndex's ``QdrantVectorStore``, and reads and writes the same payloads. What differs is
    where that one fails silently:

    - The vector is the one that was asked for, also beside an unnamed one, and also in a collection that is created.
    - With ``embedding=`` the collection's fingerprint is checked, and a collection that is created carries it; without,
      a collection that says what made its vectors is searched with a warning.
    - With ``embedding=`` the vectors of queries and of added nodes are checked: those of another model are refused.
    - Requests go to the collection that was checked, also after its alias was switched to another one.
    - Payloads of LangChain, Haystack and plain points are read with ids, metadata, filters and reference ids; a point
      without text does not fail a query.
    - `add` keeps the vectors that other models have on a point, and `get_nodes` returns all of them.
    - NE, NIN, CONTAINS, ANY and ALL filters mean what LlamaIndex says they mean, 2 is 2.0, and a key is the one that
      the metadata have, also with dots and spaces.
    - A deletion that every node would pass is refused, and index and image nodes hide no text nodes from an index.
    - An MMR query gives diverse answers, and a query of a mode that is not answered is refused.
    - With ``embedding=``, where the collection has a BM25 vector of this package, queries are hybrid and added nodes
      get it; ``enable_hybrid=False`` searches the dense vector alone.
    - Scores of hybrid queries are in 0…1, and ``alpha=0.0`` is 0, sync and async.
    - One client serves sync and async callers, from any number of threads.
    - Searches and writes that fail for the moment are tried again, on another node where the client knows several
      (`care_qdrant.open_client` with several URLs).

    Example:
        >>> from qdrant_client import QdrantClient
        >>> from llama_index.embeddings.care import CareEmbedding
        >>> from llama_index.vector_stores.care import CareVectorStore
        >>> client = QdrantClient(path="qdrant")
        >>> store = CareVectorStore("corpus", client, embedding=CareEmbedding())  # doctest: +SKIP
    """

    # A misspelt setting would leave its default in force, without a word.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    stores_text: bool = True
    collection_name: str = Field(description="Name or alias.")
    dense_vector_name: str = Field(default="", description="Of the vector that is searched.")
    sparse_vector_name: str = Field(default="", description="Of the sparse vector; by default the only one.")
    enable_hybrid: bool = Field(default=False, description="By default, where the collection has BM25 of this package.")
    batch_size: int = Field(default=64, gt=0, description="Points of one request of `add`.")
    parallel: int = Field(default=1, gt=0, description="Requests of `add` that are under way at a time.")
    max_retries: int = Field(default=3, description="Attempts of a request that fails for the moment.")
    index_doc_id: bool = Field(default=True, description="Index the ids of documents in a collection that is created.")
    url: str | None = Field(default=None, description="Of the server, where no client is given.")
    api_key: str | None = Field(default=None, repr=False, description="Of that server.")
    client_kwargs: dict[str, Any] = Field(default_factory=dict, description="Other settings of that client.")
    fastembed_sparse_model: str | None = Field(default=None, description="Sparse encoder by its name in FastEmbed.")
    sparse_doc_fn: Terms | None = Field(default=None, exclude=True, description="Sparse encoder of nodes.")
    sparse_query_fn: Terms | None = Field(default=None, exclude=True, description="Sparse encoder of queries.")
    hybrid_fusion_fn: Callable[..., VectorStoreQueryResult] | None = Field(
        default=None, exclude=True, description="Fuses the dense and the sparse answer in place of Qdrant."
    )
    payload_indexes: list[dict[str, Any]] | None = Field(
        default=None, exclude=True, description="Indexes to create: field_name and field_schema of each."
    )
    dense_config: models.VectorParams | None = Field(default=None, exclude=True, description="Of a new collection.")
    sparse_config: models.SparseVectorParams | None = Field(
        default=None, exclude=True, description="Of a new collection."
    )
    quantization_config: Any | None = Field(default=None, exclude=True, description="Of a new collection.")
    shard_number: int | None = Field(default=None, exclude=True, description="Of a new collection.")
    replication_factor: int | None = Field(default=None, exclude=True, description="Of a new collection.")
    write_consistency_factor: int | None = Field(default=None, exclude=True, description="Of a new collection.")
    sharding_method: models.ShardingMethod | None = Field(
        default=None, exclude=True, description="CUSTOM for shards by key, chosen by the next two."
    )
    shard_keys: list[models.ShardKey] | None = Field(default=None, exclude=True, description="Of a new collection.")
    shard_key_selector_fn: Callable[..., Any] | None = Field(
        default=None, exclude=True, description="Returns the shard keys of a ``shard_identifier``."
    )

    _client: QdrantClient = PrivateAttr()
    _named: Collection = PrivateAttr()
    _resolver: CollectionResolver = PrivateAttr()
    _fusion: Fusion = PrivateAttr()
    _finds_bm25: bool = PrivateAttr()
    _sparse_encoder: SparseQueryEncoder | None = PrivateAttr()
    _embedding: HasContract | None = PrivateAttr()
    _query_terms: Callable[[str], models.SparseVector] = PrivateAttr()
    _fallback: Fallback | None = PrivateAttr()
    _told: set[str] = PrivateAttr(default_factory=set)
    """Subjects of the warnings that were logged."""
    _index_nodes: IndexNodes = PrivateAttr(default_factory=IndexNodes)

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
            client: An open client; enough for sync and async calls.
            aclient: Only for those who have no other: a client with its options is opened, which async calls use, too.
            embedding: What makes the query vectors: the collection must carry its fingerprint.
            fingerprint: The same, when only the fingerprint is known.
            vector_name: Of the dense vector, ``""`` for the unnamed one; None takes the one of the embedding, or the
                only one, and where several are there it is refused.
            sparse_vector_name: For hybrid queries; None takes the only one.
            sparse_encoder: Of added nodes and of queries of the modes hybrid and sparse, in place of BM25 by this
                package: the server's own, or a model of FastEmbed (`care_qdrant.encoders.terms.sparse`). It needs
                ``sparse_vector_name``, and nothing checks that it fits the stored vectors.
            text_field: Where payloads hold the text, as ``"body"`` or ``"document.body"``; None finds out.
            fusion: Of hybrid queries with BM25 (`care_qdrant.search.fusion`); ``hybrid_fusion_fn`` takes its place.
            fallback: The model that made the vectors, for the queries with a text of which a learned encoder is least
                sure (`care_qdrant.search.fallback`).
            check_seconds: How long a check of the collection holds; it costs two short requests. An alias may be
                switched to vectors of another model at any time.
            check_vectors: Compare the vector of each query that has a text, and of two nodes of each `add`, with those
                that ``embedding`` makes, and refuse others; mostly this reads the embedding's cache of queries. Where
                it encodes no documents (``documents=False``, or without torch), only the dimension of nodes is checked.
                False for vectors that are of another text on purpose, as with HyDE.
            dense_vector_name: The stock store's word for ``vector_name``.
            settings: The other fields of this class. With ``embedding=`` or ``fingerprint=``, where the collection has
                a BM25 vector of this package, ``enable_hybrid`` is on by default: queries of the default mode are
                hybrid.

        Raises:
            InputError: The settings contradict each other; the vector is not there; no point of the collection has a
                text; or ``aclient`` is an embedded database, which only one client can open.
            ContractError: Another model made the vectors.
        """
        contract = _contract_of(embedding)
        encoder = chosen_encoder(sparse_encoder, sparse_vector_name, settings)
        # An attach of BM25 must not change what the readers of another model find, whose scores it does not know.
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
        super().__init__(**{**settings, **names, "enable_hybrid": hybrid})
        self._client = client or self._open(aclient)
        self._fusion, self._finds_bm25, self._sparse_encoder = fusion, finds_bm25, encoder
        self._embedding = embedding if check_vectors else None
        self._query_terms = getattr(embedding, "query_terms", bm25.query_vector)
        self._fallback = fallback
        config = StoreConfig(
            sparse=None if finds_bm25 else hybrid,
            bm25=hybrid and encoder is None,
            vector_name=vector_name,
            sparse_vector_name=sparse_vector_name,
            contract=contract,
            fingerprint=fingerprint,
            only_vector=True,
            text_field=text_field,
            encode=getattr(embedding, "encode_query", None),
            sample_points=SAMPLE_POINTS,
        )
        policy = replace(SEARCH_POLICY, attempts=max(1, self.max_retries))
        self._named = Collection(self._client, collection_name, policy)
        self._resolver = CollectionResolver(self._named, config, check_seconds=check_seconds)
        if self._named.exists():
            resolved = self._adopt(self._resolver.resolve())
            resolved.collection.create_indexes(self._indexes())

    @model_validator(mode="after")
    def _require_shard_keys(self) -> Self:
        by_key = self.sharding_method is models.ShardingMethod.CUSTOM
        if by_key and not (self.shard_key_selector_fn and self.shard_keys):
            raise ValueError("shards by key need shard_key_selector_fn= and shard_keys=")
        return self

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareVectorStore"

    @property
    @override
    def client(self) -> QdrantClient:
        return self._client

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the constructor takes."""
        fixed = ("stores_text", "is_embedding_query")
        return {name: value for name, value in super().to_dict(**kwargs).items() if name not in fixed}

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
        """Exchange the sparse encoder, the fusion of hybrid queries, or both; what is not given stays.

        Raises:
            InputError: A sparse encoder for one side only.
        """
        encoder = two_sided(sparse_doc_fn, sparse_query_fn)
        if encoder is not None:
            self._sparse_encoder = encoder
            self._resolver.config = replace(self._resolver.config, bm25=False)
            self._resolver.forget()
        self.hybrid_fusion_fn = hybrid_fusion_fn or self.hybrid_fusion_fn

    # The public methods. Each async one is the sync one in a thread.

    @override
    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        self._check_query(query)
        return self._use(lambda resolved: self._search(resolved, query, options))

    @override
    async def aquery(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        return await _in_thread(self.query, query, **options)

    def score(self, query_embedding: list[float], node_ids: Sequence[str]) -> dict[str, float]:
        """Return the cosine of a query with the stored vector of each node; nodes without one are left out.

        Args:
            query_embedding: Vector of the query, ``(dim,)``.
            node_ids: Of the nodes to score.
        """
        if not node_ids:
            return {}

        def ask(resolved: ResolvedCollection) -> list[models.ScoredPoint]:
            request = models.QueryRequest(
                query=query_embedding,
                using=resolved.vector_name,
                filter=models.Filter(must=[having_ids(node_ids)]),
                limit=len(node_ids),
            )
            return resolved.collection.search(f"scoring {len(node_ids)} nodes", [request])[0]

        scores: dict[Any, float] = {point.id: point.score for point in self._use(ask)}
        return {node_id: scores[found] for node_id in node_ids if (found := as_point_id(node_id)) in scores}

    async def ascore(self, query_embedding: list[float], node_ids: Sequence[str]) -> dict[str, float]:
        """Return the same as `score`."""
        return await _in_thread(self.score, query_embedding, node_ids)

    @override
    def get_nodes(
        self, node_ids: Ids = None, filters: Filters = None, limit: int | None = None, shard_identifier: Any = None
    ) -> list[BaseNode]:
        def read(resolved: ResolvedCollection) -> list[BaseNode]:
            pages = resolved.collection.of_shard(self._shard(shard_identifier)).scroll(
                where=node_filter(node_ids, filters, self._keys(resolved, filters)),
                limit=limit,
                vectors=[resolved.vector_name] if resolved.vector_name else True,
                as_seen=True,
            )
            return [as_node(resolved.read(record)) for page in pages for record in page]

        return self._use(read)

    @override
    async def aget_nodes(
        self, node_ids: Ids = None, filters: Filters = None, limit: int | None = None, shard_identifier: Any = None
    ) -> list[BaseNode]:
        return await _in_thread(self.get_nodes, node_ids, filters, limit, shard_identifier)

    @override
    def add(self, nodes: Sequence[BaseNode], shard_identifier: Any = None, **options: Any) -> list[str]:
        self._check_nodes(nodes)
        if not nodes:
            return []
        check_points(nodes)
        self._index_nodes.note(nodes)
        if not self._named.exists():
            self._create(nodes)
            self._resolver.forget()
        return self._use(lambda resolved: self._write(resolved, nodes, self._shard(shard_identifier)))

    @override
    async def async_add(self, nodes: Sequence[BaseNode], shard_identifier: Any = None, **options: Any) -> list[str]:
        return await _in_thread(self.add, nodes, shard_identifier)

    @override
    def delete(self, ref_doc_id: str, shard_identifier: Any = None, **options: Any) -> None:
        if not ref_doc_id:
            raise InputError(f"delete() was given the document id {ref_doc_id!r}; nothing was deleted")
        self._delete(lambda resolved: document_filter([ref_doc_id], resolved.layout), shard_identifier)

    @override
    async def adelete(self, ref_doc_id: str, shard_identifier: Any = None, **options: Any) -> None:
        await _in_thread(self.delete, ref_doc_id, shard_identifier)

    @override
    def delete_nodes(
        self, node_ids: Ids = None, filters: Filters = None, shard_identifier: Any = None, **options: Any
    ) -> None:
        """Delete the nodes that have one of the ids and pass the filters; what is None does not count.

        Raises:
            InputError: Neither ids nor filters are given, or a filter that rules nodes out, such as NE, names a key
                that no point has: every node would be deleted. `clear` is for that.
        """
        if node_ids is None and is_empty(filters):
            raise InputError(
                "delete_nodes() was given neither node ids nor filters, and every node would go; nothing was deleted. "
                "clear() empties the collection"
            )
        if node_ids is not None and not node_ids:
            return

        def where(resolved: ResolvedCollection) -> models.Filter:
            if filters is None or is_empty(filters):
                return node_filter(node_ids, None, Keys())
            resolved.collection.refresh()  # what was there at the last check may be gone
            keys = Keys.of(resolved.collection)
            require_selective(filters, resolved.collection, keys)
            return node_filter(node_ids, filters, keys)

        self._delete(where, shard_identifier)

    @override
    async def adelete_nodes(
        self, node_ids: Ids = None, filters: Filters = None, shard_identifier: Any = None, **options: Any
    ) -> None:
        await _in_thread(self.delete_nodes, node_ids, filters, shard_identifier)

    @override
    def clear(self) -> None:
        self._named.drop()
        self._resolver.forget()

    @override
    async def aclear(self) -> None:
        await _in_thread(self.clear)

    # Resolving and running

    def _open(self, aclient: AsyncQdrantClient | None) -> QdrantClient:
        """Open the server of an async client, or the one that the settings name."""
        if aclient is None:
            if self.url is None:
                raise InputError("CareVectorStore needs client=, aclient= or url=")
            return QdrantClient(url=self.url, api_key=self.api_key, **self.client_kwargs)
        if isinstance(aclient._client, AsyncQdrantLocal):
            raise InputError(
                "aclient= is an embedded database, which only one client can open: give client=QdrantClient(...) in "
                "its place; async calls use it, too"
            )
        return QdrantClient(**aclient.init_options)

    def _use(self, work: Callable[[ResolvedCollection], T]) -> T:
        """Return the result of work on the collection, checked if due, and done again if it was replaced meanwhile."""
        return self._resolver.use(lambda resolved: work(self._adopt(resolved)))

    def _adopt(self, resolved: ResolvedCollection) -> ResolvedCollection:
        """Let the fields name the vectors that were chosen."""
        self.dense_vector_name = resolved.vector_name or ""
        if resolved.sparse_vector_name is not None:
            self.sparse_vector_name = resolved.sparse_vector_name
        if self._finds_bm25:
            self.enable_hybrid = resolved.bm25 is not None
        if resolved.unfinished is not None:
            self._warn_once("unfinished", "%s", resolved.unfinished)
        if resolved.unchecked is not None:
            self._warn_once(
                "unchecked",
                "vector %r of collection %r was made by %s (%s), and nobody says what makes the queries: give "
                "CareVectorStore(..., embedding=) what embeds them, and another model is refused",
                resolved.vector_name,
                self.collection_name,
                resolved.unchecked.model,
                resolved.unchecked.fingerprint[:12],
            )
        return resolved

    def _check_query(self, query: VectorStoreQuery) -> None:
        """Refuse a dense query whose vector the embedding of this store did not make."""
        vector = query.query_embedding
        if self._embedding is not None and self.contract is not None and vector is not None and not is_lexical(query):
            check_query(self.collection_name, self.contract, self._embedding, query.query_str or "", vector)

    def _check_nodes(self, nodes: Sequence[BaseNode]) -> None:
        """Refuse nodes whose vectors the embedding of this store did not make."""
        if self._embedding is not None and self.contract is not None and nodes:
            check_nodes(self.collection_name, self.contract, self._embedding, nodes)

    # Reading

    def _search(
        self, resolved: ResolvedCollection, query: VectorStoreQuery, options: dict[str, Any]
    ) -> VectorStoreQueryResult:
        if resolved.bm25 is not None and query.mode == VectorStoreQueryMode.DEFAULT and query.query_str:
            query = replace(query, mode=VectorStoreQueryMode.HYBRID)
        asked = self._asked(resolved, query, options)
        if self._fallback is not None and asked.vector is not None and query.query_str:
            [vector] = self._fallback.improve(resolved, [query.query_str], [asked.vector], asked.shard_key)
            asked = replace(asked, vector=vector)
        [lists] = find(resolved, [asked])
        self._tell_script(query.query_str or "", lists)
        if self.hybrid_fusion_fn is not None and asked.is_hybrid:
            return self.hybrid_fusion_fn(*map(as_result, lists), alpha=asked.alpha_in(resolved), top_k=asked.top_k)
        hits: list[Hit] = lists[0] if lists else []
        if asked.with_vectors:
            threshold = options.get("mmr_threshold", query.mmr_threshold)
            hits = choose_diverse(hits, asked.vector or [], threshold, asked.top_k)
        elif asked.is_hybrid:
            hits = (
                clip_scores(hits)
                if asked.fusion is not None
                else fuse_by_scaled_score(lists[0], lists[1], asked.alpha_in(resolved), asked.top_k)
            )
        return as_result(hits)

    def _tell_script(self, question: str, lists: Sequence[Sequence[Hit]]) -> None:
        """Log once that a question is in the other script of Chinese than all that it found."""
        if "script" not in self._told and (note := script_note(question, chain(*lists))) is not None:
            self._warn_once("script", "collection %r: %s", self.collection_name, note)

    def _warn_once(self, about: str, message: str, *values: Any) -> None:
        """Log a warning that would come with every query, for the first of them alone."""
        if about not in self._told:
            self._told.add(about)
            logger.warning(message, *values)

    def _asked(self, resolved: ResolvedCollection, query: VectorStoreQuery, options: Mapping[str, Any]) -> Query:
        """Return a query as the core takes it; the options are those of the stock store."""
        require_mode(query, resolved, is_hybrid=self.enable_hybrid, finds_bm25=self._finds_bm25)
        own_filter, params = options.get("qdrant_filters"), options.get("search_params")
        terms = self._terms(query) if query.mode in LEXICAL and query.query_str else None
        hybrid_top_k = query.hybrid_top_k if query.mode == VectorStoreQueryMode.HYBRID else None
        return Query(
            None if is_lexical(query) else query.query_embedding,
            terms,
            hybrid_top_k or query.similarity_top_k,
            filter=own_filter if own_filter is not None else self._filter(resolved, query),
            params=models.SearchParams(**params) if isinstance(params, dict) else params,
            fusion=self._fusion if resolved.bm25 is not None and self.hybrid_fusion_fn is None else None,
            alpha=query.alpha,
            sparse_top_k=query.sparse_top_k,
            with_vectors=query.mode == VectorStoreQueryMode.MMR and query.query_embedding is not None,
            shard_key=self._shard(options.get("shard_identifier")),
        )

    def _filter(self, resolved: ResolvedCollection, query: VectorStoreQuery) -> models.Filter | None:
        """Return the filter of a query, and log once of each key by which it means to rule points out and cannot."""
        keys = self._keys(resolved, query.filters)
        for one in passing_without(query.filters) if query.filters is not None else ():
            said = f"key {one.key}"
            if said not in self._told and not keys.has(resolved.collection, one.key):
                reason = no_such_key(resolved.collection, one.key)
                self._warn_once(said, "%s: a filter on it with %s passes every point", reason, one.operator.value)
        if query.node_ids and self._index_nodes.are_a_list(resolved.collection, query.node_ids):
            self._warn_once("index nodes", _NOT_RESTRICTED, self.collection_name)
            query = replace(query, node_ids=None)
        return query_filter(query, resolved.layout, keys)

    def _keys(self, resolved: ResolvedCollection, filters: Filters) -> Keys:
        return Keys() if filters is None or is_empty(filters) else self._resolver.keys(resolved)

    def _terms(self, query: VectorStoreQuery) -> SparseQuery:
        """Return the terms of a query; in a hybrid one they have the weights that the pair has learned."""
        weighted = self._query_terms if query.mode == VectorStoreQueryMode.HYBRID else bm25.query_vector
        return (self._sparse_encoder or weighted)(query.query_str or "")

    # Writing

    def _write(self, resolved: ResolvedCollection, nodes: Sequence[BaseNode], shard: Any) -> list[str]:
        """Write nodes, ``parallel`` requests at a time; vectors of other models on the same points stay."""
        if resolved.layout is not None and resolved.layout.tool == "care":
            self._warn_of_metadata(nodes)
        write = partial(self._write_nodes, resolved, resolved.collection.of_shard(shard))
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="care-add") as threads:
            outdated = sum(threads.map(write, iter_batch(nodes, self.batch_size)))
        if outdated:
            logger.warning(
                "%d points of collection %r have a new text; their vectors of other models were made of the old one: "
                "let the pipelines that made them run again (`care attach` for those that it made)",
                outdated,
                self.collection_name,
            )
        return [node.node_id for node in nodes]

    def _write_nodes(self, resolved: ResolvedCollection, collection: Collection, nodes: Sequence[BaseNode]) -> int:
        """Write nodes, and return how many have a new text."""
        terms = {}
        if self.enable_hybrid and resolved.sparse_vector_name is not None:
            terms[resolved.sparse_vector_name] = self._stored_terms(resolved, nodes)
        expected = self._resolver.config.expected
        points = build_points(nodes, resolved.vector_name or "", terms, resolved.layout, expected)
        there = collection.retrieve([point.id for point in points]) if resolved.has_other_vectors else {}
        for write in writes(points, there.values()):
            send_all(collection, write)
        return len(changed_texts(points, there.values(), resolved.layout))

    def _stored_terms(self, resolved: ResolvedCollection, nodes: Sequence[BaseNode]) -> list[SparseQuery]:
        texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
        if self._sparse_encoder is not None:
            return document_terms(self._sparse_encoder, texts)
        assert resolved.bm25 is not None, "without another encoder, the sparse vector is BM25 of this package"
        return list(map(resolved.bm25.vector, texts))

    def _delete(self, where: Callable[[ResolvedCollection], models.Filter], shard: Any) -> None:
        key = self._shard(shard)
        self._use(lambda resolved: resolved.collection.of_shard(key).delete_where(where(resolved)))

    def _create(self, nodes: Sequence[BaseNode]) -> None:
        """Create the collection with named vectors and, when the model is known, its contract."""
        contract, dim = self.contract, len(nodes[0].get_embedding())
        metadata = {} if contract is None else contract_metadata(self.dense_vector_name, contract)
        terms = None if self._sparse_encoder is None else self._sparse_encoder(nodes[0].get_content())
        is_native = isinstance(terms, models.Document) and terms.model == NATIVE_BM25
        modifier = models.Modifier.IDF if is_native else None
        if self._resolver.config.bm25:
            modifier = models.Modifier.IDF
            lexical = SparseContract.of_texts(node.get_content(MetadataMode.EMBED) for node in nodes)
            metadata |= contract_metadata(self.sparse_vector_name, lexical)
        distance = models.Distance.COSINE if contract is None else contract.qdrant_distance
        dense = self.dense_config or models.VectorParams(size=dim, distance=distance)
        sparse = self.sparse_config or models.SparseVectorParams(modifier=modifier)
        make_collection(
            self._named,
            {self.dense_vector_name: dense} if self.dense_vector_name else dense,
            {self.sparse_vector_name: sparse} if self.enable_hybrid else None,
            metadata,
            quantization_config=self.quantization_config,
            shard_number=self.shard_number,
            replication_factor=self.replication_factor,
            sharding_method=self.sharding_method,
            write_consistency_factor=self.write_consistency_factor,
        )
        for key in self.shard_keys or ():
            self._named.of_shard(key).create_shard_key(None, None)
        indexes: dict[str, Any] = {DOCUMENT_ID_KEY: models.PayloadSchemaType.KEYWORD} if self.index_doc_id else {}
        self._named.create_indexes(indexes | self._indexes())

    def _indexes(self) -> dict[str, Any]:
        return {
            path: index.get("field_schema")
            for index in self.payload_indexes or ()
            for path in readings(index["field_name"])
        }

    def _shard(self, identifier: Any | None) -> Any | None:
        if identifier is None or self.sharding_method is not models.ShardingMethod.CUSTOM:
            return None
        return None if self.shard_key_selector_fn is None else self.shard_key_selector_fn(identifier)

    def _warn_of_metadata(self, nodes: Sequence[BaseNode]) -> None:
        leaking = next((node for node in nodes if embeds_other_metadata(node)), None)
        if leaking is not None:
            self._warn_once(
                "metadata",
                "node %s of collection %r was embedded with its metadata in front of the text, unlike what care-ingest "
                "wrote: take transformations=[CareNodeParser(embedding=...)], or put CareNodeText() behind another "
                "splitter (keys: %s)",
                leaking.node_id,
                self.collection_name,
                ", ".join(sorted(leaking.metadata)),
            )


def _contract_of(embedding: HasContract | None) -> VectorContract | None:
    if embedding is not None and not callable(getattr(embedding, "contract", None)):
        raise InputError(
            f"embedding= is a {type(embedding).__name__}, which does not say what made its vectors; expected a "
            "CareEmbedding or a CareModel. For another class, leave embedding= out and give vector_name=, '' for the "
            "unnamed vector"
        )
    return None if embedding is None else embedding.contract()
