"""`CareVectorStore`: LlamaIndex's Qdrant store, made safe on collections that it did not create."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import (
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.embeddings.care.nodes import embeds_other_metadata
from llama_index.vector_stores.care.filters import build_filter, document_filter, node_filter, query_filter
from llama_index.vector_stores.care.origin import check_nodes, check_query
from llama_index.vector_stores.care.points import (
    add_hash,
    as_lists,
    as_point_id,
    changed_texts,
    check_ids,
    having_ids,
    merge_operations,
    read_result,
    vector_of,
)
from llama_index.vector_stores.care.query import LEXICAL, build_plan, choose_diverse, clip_scores, fuse_by_scaled_score
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index.vector_stores.qdrant.base import DEFAULT_DENSE_VECTOR_NAME, DOCUMENT_ID_KEY
from llama_index.vector_stores.qdrant.utils import HybridFusionCallable, SparseEncoderCallable
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from qdrant_client.local.async_qdrant_local import AsyncQdrantLocal
from typing_extensions import override

from care_qdrant.encoders import bm25
from care_qdrant.encoders.sparse import NATIVE_BM25, SparseQuery, SparseQueryEncoder, document_terms
from care_qdrant.errors import InputError, Rejected
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.contracts import SparseContract, VectorContract, contract_metadata
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME
from care_qdrant.qdrant.embedded_sparse import tune_sparse_search
from care_qdrant.qdrant.layout import Layout
from care_qdrant.qdrant.retry import RequestTooLarge
from care_qdrant.search.fusion import Fusion
from care_qdrant.search.plan import QueryPlan
from care_qdrant.search.resolve import CHECK_SECONDS, CollectionResolver, ResolvedCollection, StoreConfig
from care_qdrant.search.retriever import SEARCH_POLICY

P = ParamSpec("P")
T = TypeVar("T")
Ids = list[str] | None
Filters = MetadataFilters | None

SAMPLE_POINTS = 32
"""Points that are read once to find out who wrote the payloads."""

_STOCK_SETTINGS = frozenset(signature(QdrantVectorStore.__init__).parameters) | QdrantVectorStore.model_fields.keys()
"""What the stock store's constructor takes, and what its `to_dict` returns."""

_THREADS = ThreadPoolExecutor(32, thread_name_prefix="care-store")
"""Async calls wait for sync ones in these, so that one client serves both and nothing is written twice."""

logger = logging.getLogger(__name__)


async def _in_thread(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return what a sync call returns; a caller that is cancelled no longer waits for it."""
    call = partial(copy_context().run, function, *args, **options)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)


class HasContract(Protocol):
    """A `CareEmbedding`, a `CareModel`: what knows the model that makes the vectors."""

    def contract(self) -> VectorContract:
        """Return what a collection must say of its vectors."""


class CareVectorStore(QdrantVectorStore):
    """Searches one named vector of a collection, with the model that made it, whoever wrote the payloads.

    What differs from ``QdrantVectorStore``, which fails silently in each case:

    - The vector is the one that was asked for, also beside an unnamed one, and also in a collection that is created.
    - With ``embedding=`` the collection's fingerprint is checked, and a collection that is created carries it; without,
      a collection that says what made its vectors is searched with a warning.
    - With ``embedding=`` the vectors of queries and of added nodes are checked: those of another model are refused.
    - Requests go to the collection that was checked, also after its alias was switched to another one.
    - Payloads of LangChain, Haystack and plain points are read with ids, metadata, filters and reference ids; a point
      without text does not fail a query.
    - `add` keeps the vectors that other models have on a point, and `get_nodes` returns all of them.
    - NE, NIN, CONTAINS, ANY and ALL filters mean what LlamaIndex says they mean, and 2 is 2.0.
    - An MMR query gives diverse answers, and a query of a mode that is not answered is refused.
    - Where the collection has a BM25 vector of this package, queries are hybrid and added nodes get it, too;
      ``enable_hybrid=False`` searches the dense vector alone.
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

    _named: Collection = PrivateAttr()
    _resolver: CollectionResolver = PrivateAttr()
    _fusion: Fusion = PrivateAttr(default="linear")
    _finds_bm25: bool = PrivateAttr(default=False)
    _sparse_encoder: SparseQueryEncoder | None = PrivateAttr(default=None)
    _own_fusion: HybridFusionCallable | None = PrivateAttr(default=None)
    _embedding: HasContract | None = PrivateAttr(default=None)
    _has_warned: bool = PrivateAttr(default=False)

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
            vector_name: Of the dense vector; None takes the one of the embedding, or the only one.
            sparse_vector_name: For hybrid queries; None takes the only one.
            sparse_encoder: Of added nodes and of queries of the modes hybrid and sparse, in place of BM25 by this
                package: the server's own, or a model of FastEmbed (`care_qdrant.encoders.sparse`). It needs
                ``sparse_vector_name``, and nothing checks that it fits the stored vectors.
            text_field: Where payloads hold the text, as ``"body"`` or ``"document.body"``; None finds out.
            fusion: Of hybrid queries with BM25 (`care_qdrant.search.fusion`); ``hybrid_fusion_fn`` takes its place.
            check_seconds: How long a check of the collection holds; it costs two short requests. An alias may be
                switched to vectors of another model at any time.
            check_vectors: Compare the vector of each query that has a text, and of two nodes of each `add`, with those
                that ``embedding`` makes, and refuse others; mostly this reads the embedding's cache of queries. Where
                it encodes no documents (``documents=False``, or without torch), only the dimension of nodes is checked.
                False for vectors that are of another text on purpose, as with HyDE.
            dense_vector_name: The stock store's word for ``vector_name``.
            settings: Of ``QdrantVectorStore``: they are its own, and passed on as they are. ``enable_hybrid`` is on by
                default where the collection has a BM25 vector of this package; queries of the default mode are then
                hybrid, too.

        Raises:
            InputError: There is no such setting; the vector is not there; no point of the collection has a text; or
                ``aclient`` is an embedded database, which only one client can open.
            ContractError: Another model made the vectors.
        """
        _require_known(settings)
        if embedding is not None and not callable(getattr(embedding, "contract", None)):
            raise InputError(
                f"embedding= is a {type(embedding).__name__}, which does not say what made its vectors; expected a "
                "CareEmbedding or a CareModel. For another class, leave embedding= out and give vector_name="
            )
        contract = embedding.contract() if embedding is not None else None
        vector_name = vector_name or dense_vector_name
        default_name = contract.model if contract is not None else DEFAULT_DENSE_VECTOR_NAME
        hybrid = bool(settings.get("enable_hybrid"))
        if sparse_encoder is not None:
            _require_encoder_alone(settings, sparse_vector_name)
            hybrid = True
            settings.update(sparse_doc_fn=_no_terms, sparse_query_fn=_no_terms)
        own_sparse = bool(settings.get("sparse_query_fn") or settings.get("fastembed_sparse_model"))
        if settings.get("sparse_doc_fn") and not own_sparse:
            raise InputError("sparse_doc_fn= without sparse_query_fn=: queries would be cut into other terms")
        finds_bm25 = settings.get("enable_hybrid") is None and not own_sparse
        settings["enable_hybrid"] = hybrid
        if not own_sparse:
            settings.update(sparse_doc_fn=self._bm25_of_documents, sparse_query_fn=_bm25_of_queries)
        super().__init__(
            collection_name,
            client=_sync_client(aclient) if client is None and aclient is not None else client,
            aclient=aclient,
            dense_vector_name=vector_name or default_name,
            sparse_vector_name=sparse_vector_name or (SPARSE_VECTOR_NAME if not own_sparse else None),
            **settings,
        )
        self._fusion, self._finds_bm25, self._sparse_encoder = fusion, finds_bm25, sparse_encoder
        if finds_bm25:
            self._sparse_doc_fn, self._sparse_query_fn = self._bm25_of_documents, _bm25_of_queries
        self._embedding = embedding if check_vectors else None
        self._own_fusion = settings.get("hybrid_fusion_fn")
        config = StoreConfig(
            sparse=None if finds_bm25 else self.enable_hybrid,
            bm25=hybrid and not own_sparse,
            vector_name=vector_name,
            sparse_vector_name=sparse_vector_name,
            contract=contract,
            fingerprint=fingerprint,
            only_vector=True,
            text_field=text_field,
            sample_points=SAMPLE_POINTS,
        )
        self._named = self._collection(collection_name)
        self._resolver = CollectionResolver(self._named, config, check_seconds=check_seconds)
        if self._collection_initialized:
            self._adopt(self._resolver.resolve())

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
            InputError: A sparse encoder for one side only.
        """
        if (sparse_doc_fn is None) != (sparse_query_fn is None):
            raise InputError("a sparse encoder has two sides: give sparse_doc_fn= and sparse_query_fn=")
        if sparse_doc_fn is not None:
            self._sparse_doc_fn, self._sparse_query_fn, self._sparse_encoder = sparse_doc_fn, sparse_query_fn, None
            self._resolver.config = replace(self._resolver.config, bm25=False)
            self._resolver.forget()
        if hybrid_fusion_fn is not None:
            self._own_fusion = hybrid_fusion_fn

    @property
    def contract(self) -> VectorContract | None:
        """What the model that this store was opened for makes; None when it was opened for none."""
        return self._resolver.config.contract

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
                where=node_filter(node_ids, filters, resolved.layout),
                limit=limit,
                vectors=[resolved.vector_name] if resolved.vector_name else True,
            )
            records = [record for page in pages for record in page]
            found = read_result(records, resolved.layout, resolved.vector_name or "", or_unnamed=self._is_unbound)
            return list(found.nodes or ())

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
        check_ids(nodes)
        self._warn_of_metadata(nodes)
        if not self._named.exists():
            self._create(nodes)
            self._resolver.forget()
        return self._use(lambda resolved: self._write(resolved, nodes, self._shard(shard_identifier)))

    @override
    async def async_add(self, nodes: Sequence[BaseNode], shard_identifier: Any = None, **options: Any) -> list[str]:
        return await _in_thread(self.add, nodes, shard_identifier, **options)

    @override
    def delete(self, ref_doc_id: str, shard_identifier: Any = None, **options: Any) -> None:
        self._delete(partial(document_filter, [ref_doc_id]), shard_identifier)

    @override
    async def adelete(self, ref_doc_id: str, shard_identifier: Any = None, **options: Any) -> None:
        await _in_thread(self.delete, ref_doc_id, shard_identifier)

    @override
    def delete_nodes(
        self, node_ids: Ids = None, filters: Filters = None, shard_identifier: Any = None, **options: Any
    ) -> None:
        self._delete(partial(node_filter, node_ids, filters), shard_identifier)

    @override
    async def adelete_nodes(
        self, node_ids: Ids = None, filters: Filters = None, shard_identifier: Any = None, **options: Any
    ) -> None:
        await _in_thread(self.delete_nodes, node_ids, filters, shard_identifier)

    @override
    def clear(self) -> None:
        self._named.drop()
        self._collection_initialized = False
        self._resolver.forget()

    @override
    async def aclear(self) -> None:
        await _in_thread(self.clear)

    # What the stock store offers to those who extend it, in terms of the collection that was resolved last.

    @override
    def parse_to_query_result(self, response: list[Any]) -> VectorStoreQueryResult:
        return read_result(response, self._layout, self.dense_vector_name, or_unnamed=self._is_unbound)

    @override
    def _collection_exists(self, collection_name: str) -> bool:
        return self._collection(collection_name).exists()

    @override
    def _detect_vector_format(self, collection_name: str) -> None:
        """Nothing: the stock store guesses here, and takes the unnamed vector where there is one."""

    @override
    async def _adetect_vector_format(self, collection_name: str) -> None:
        """Nothing, as `_detect_vector_format`."""

    @override
    def _build_subfilter(self, filters: MetadataFilters) -> models.Filter:
        return build_filter(filters, self._layout)

    @override
    def _build_query_filter(self, query: VectorStoreQuery) -> models.Filter | None:
        return query_filter(query, self._layout)

    @override
    def _build_points(
        self, nodes: list[BaseNode], sparse_vector_name: str
    ) -> tuple[list[models.PointStruct], list[str]]:
        """Let points be found by the filters of the tool that made the collection, and be read by it."""
        points, ids = super()._build_points(nodes, sparse_vector_name)
        if self._sparse_encoder is not None:
            terms = document_terms(self._sparse_encoder, [node.get_content(MetadataMode.EMBED) for node in nodes])
            for point, vector in zip(points, terms, strict=True):
                point.vector = {**cast(dict[str, Any], point.vector), sparse_vector_name: vector}
        if (layout := self._layout) is not None:
            for node, point in zip(nodes, points, strict=True):
                foreign = layout.written(node.get_content(MetadataMode.NONE), node.metadata, node.ref_doc_id)
                point.payload = {**foreign, **(point.payload or {})}
        if (fingerprint := self._resolver.config.expected) is not None:
            for node, point in zip(nodes, points, strict=True):
                add_hash(point, node, self.dense_vector_name, fingerprint)
        return points, ids

    # Resolving and running

    @property
    def _layout(self) -> Layout | None:
        resolved = self._resolver.resolved
        return resolved.layout if resolved is not None else None

    @property
    def _is_unbound(self) -> bool:
        """Whether nobody says which model makes the query vectors."""
        return self._resolver.config.expected is None

    def _collection(self, name: str) -> Collection:
        """Return the way to the points: as patient as a search, with as many attempts as the settings say."""
        return Collection(self._client, name, replace(SEARCH_POLICY, attempts=max(1, self.max_retries)))

    def _use(self, work: Callable[[ResolvedCollection], T]) -> T:
        """Return the result of work on the collection, checked if due, and done again if it was replaced meanwhile."""
        return self._resolver.use(lambda resolved: work(self._adopt(resolved)))

    def _adopt(self, resolved: ResolvedCollection) -> ResolvedCollection:
        """Let the fields of the stock store name the vectors that were chosen."""
        self.dense_vector_name = resolved.vector_name or ""
        self.sparse_vector_name = resolved.sparse_vector_name or self.sparse_vector_name
        if self._finds_bm25:
            self.enable_hybrid = resolved.bm25 is not None
        if resolved.bm25 is not None:
            tune_sparse_search(self._client, resolved.name)
        self._legacy_vector_format = self.dense_vector_name == ""
        self._collection_initialized = True
        if resolved.unchecked is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
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
        is_lexical = query.mode == VectorStoreQueryMode.SPARSE and query.query_str is not None
        if self._embedding is not None and self.contract is not None and vector is not None and not is_lexical:
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
        plan = self._plan(resolved, query, options)
        requests = plan.requests()
        if not requests:
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        lists = resolved.collection.search("searching", requests)
        to_result = partial(
            read_result,
            layout=resolved.layout,
            vector_name=resolved.vector_name or "",
            or_unnamed=self._is_unbound,
        )
        if plan.with_vectors:
            vectors = [vector_of(point, resolved.vector_name or "", or_unnamed=True) or [] for point in lists[0]]
            threshold = options.get("mmr_threshold", query.mmr_threshold)
            return to_result(choose_diverse(lists[0], vectors, query.query_embedding or [], threshold, plan.top_k))
        if not plan.is_hybrid:
            return to_result(lists[0])
        if plan.fusion is not None:
            return to_result(clip_scores(lists[0]))
        if self._own_fusion is not None:
            return self._own_fusion(*map(to_result, lists), alpha=plan.alpha, top_k=plan.top_k)
        return to_result(fuse_by_scaled_score(lists[0], lists[1], plan.alpha, plan.top_k))

    def _plan(self, resolved: ResolvedCollection, query: VectorStoreQuery, options: dict[str, Any]) -> QueryPlan:
        """Return the plan of a query; the options are those of the stock store."""
        if query.mode in LEXICAL and not self.enable_hybrid:
            raise ValueError(f"a {query.mode.value} query needs CareVectorStore(..., enable_hybrid=True)")
        own_filter, params = options.get("qdrant_filters"), options.get("search_params")
        return build_plan(
            query,
            self._terms(query) if query.mode in LEXICAL else None,
            resolved,
            filter=own_filter if own_filter is not None else query_filter(query, resolved.layout),
            params=models.SearchParams(**params) if isinstance(params, dict) else params,
            shard_key=self._shard(options.get("shard_identifier")),
            fusion=self._fusion if resolved.bm25 is not None and self._own_fusion is None else None,
        )

    def _terms(self, query: VectorStoreQuery) -> SparseQuery | None:
        if not query.query_str or self._sparse_query_fn is None:
            return None
        if self._sparse_encoder is not None:
            return self._sparse_encoder(query.query_str)
        (indices,), (values,) = self._sparse_query_fn([query.query_str])
        return models.SparseVector(indices=indices, values=values)

    # Writing

    def _write(self, resolved: ResolvedCollection, nodes: Sequence[BaseNode], shard: Any) -> list[str]:
        """Write nodes, ``parallel`` requests at a time; vectors of other models on the same points stay."""
        points, ids = self._build_points(list(nodes), self.sparse_vector_name)
        write = partial(self._write_batch, resolved, resolved.collection.of_shard(shard))
        with ThreadPoolExecutor(max(1, self.parallel), thread_name_prefix="care-add") as threads:
            outdated = sum(threads.map(write, iter_batch(points, self.batch_size)))
        if outdated:
            logger.warning(
                "%d points of collection %r have a new text; their vectors of other models were made of the old one: "
                "let the pipelines that made them run again (`care attach` for those that it made)",
                outdated,
                self.collection_name,
            )
        return ids

    def _write_batch(
        self, resolved: ResolvedCollection, collection: Collection, points: list[models.PointStruct]
    ) -> int:
        """Write points in one request, or in halves of one that is too large; return how many have a new text."""
        there = collection.retrieve([point.id for point in points]) if resolved.has_other_vectors else {}
        what = f"writing {len(points)} points"
        try:
            collection.apply(what, merge_operations(points, there.values()))
        except RequestTooLarge as error:
            if len(points) == 1:
                raise Rejected(f"{what}: the server finds even one point too large ({error})") from error
            half = len(points) // 2
            return sum(self._write_batch(resolved, collection, part) for part in (points[:half], points[half:]))
        return len(changed_texts(points, there.values(), resolved.layout))

    def _delete(self, where: Callable[[Layout | None], models.Filter], shard: Any) -> None:
        key = self._shard(shard)
        self._use(lambda resolved: resolved.collection.of_shard(key).delete_where(where(resolved.layout)))

    def _create(self, nodes: Sequence[BaseNode]) -> None:
        """Create the collection with named vectors and, when the model is known, its contract."""
        contract, dim = self.contract, len(nodes[0].get_embedding())
        metadata = {} if contract is None else contract_metadata(self.dense_vector_name, contract)
        terms = None if self._sparse_encoder is None else self._sparse_encoder(nodes[0].get_content())
        is_native = isinstance(terms, models.Document) and terms.model == NATIVE_BM25
        modifier = models.Modifier.IDF if is_native else None
        if self._resolver.config.bm25:
            modifier = models.Modifier.IDF
            average = bm25.average_length(node.get_content(MetadataMode.EMBED) for node in nodes)
            constants = SparseContract(bm25.ANALYSER, bm25.DEFAULT_K1, bm25.DEFAULT_B, average)
            metadata |= contract_metadata(self.sparse_vector_name, constants)
        distance = models.Distance.COSINE if contract is None else contract.qdrant_distance
        dense = self._dense_config or models.VectorParams(size=dim, distance=distance)
        sparse = self._sparse_config or models.SparseVectorParams(modifier=modifier)
        try:
            self._named.create(
                vectors_config={self.dense_vector_name: dense},
                sparse_vectors_config={self.sparse_vector_name: sparse} if self.enable_hybrid else None,
                quantization_config=self._quantization_config,
                shard_number=self._shard_number,
                replication_factor=self._replication_factor,
                sharding_method=self._sharding_method,
                write_consistency_factor=self._write_consistency_factor,
                metadata=metadata or None,
            )
        except Rejected as error:
            # Another process made it in the meantime, or our own request did and its answer was lost.
            if "already exists" not in str(error):
                raise
        for key in self._shard_keys or ():
            self._named.of_shard(key).create_shard_key(None, None)
        indexes: dict[str, Any] = {DOCUMENT_ID_KEY: models.PayloadSchemaType.KEYWORD} if self.index_doc_id else {}
        indexes |= {index["field_name"]: index.get("field_schema") for index in self._payload_indexes or ()}
        self._named.create_indexes(indexes)

    def _bm25_of_documents(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        resolved = self._resolver.resolved
        assert resolved is not None and resolved.bm25 is not None, "points are built for a resolved collection"
        k1, b, average = resolved.bm25.k1, resolved.bm25.b, resolved.bm25.average_length
        return as_lists(bm25.document_vector(text, average_length=average, k1=k1, b=b) for text in texts)

    def _shard(self, shard_identifier: Any | None) -> Any | None:
        return self._generate_shard_key_selector(shard_identifier) if shard_identifier is not None else None

    def _warn_of_metadata(self, nodes: Sequence[BaseNode]) -> None:
        leaking = next((node for node in nodes if embeds_other_metadata(node)), None)
        if leaking is not None:
            logger.warning(
                "node %s of collection %r was embedded with its metadata in front of the text, unlike what care-ingest "
                "writes: put CareNodeText() behind the splitter in transformations= (keys: %s)",
                leaking.node_id,
                self.collection_name,
                ", ".join(sorted(leaking.metadata)),
            )


def _sync_client(aclient: AsyncQdrantClient) -> QdrantClient:
    """Open the server of an async client."""
    if isinstance(aclient._client, AsyncQdrantLocal):
        raise InputError(
            "aclient= is an embedded database, which only one client can open: give client=QdrantClient(...) in its "
            "place; async calls use it, too"
        )
    return QdrantClient(**aclient.init_options)


def _bm25_of_queries(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
    return as_lists(bm25.query_vector(text) for text in texts)


def _no_terms(_texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
    """Let the stock store write dense vectors alone."""
    return [], []


def _require_encoder_alone(settings: Mapping[str, Any], sparse_vector_name: str | None) -> None:
    """Refuse settings that contradict ``sparse_encoder``."""
    others = [name for name in ("sparse_doc_fn", "sparse_query_fn", "fastembed_sparse_model") if settings.get(name)]
    if others or sparse_vector_name is None or settings.get("enable_hybrid") is False:
        raise InputError(
            "sparse_encoder= needs sparse_vector_name=, and excludes enable_hybrid=False and other sparse encoders"
            + (f" ({', '.join(others)})" if others else "")
        )


def _require_known(settings: Iterable[str]) -> None:
    """Refuse what the stock store would swallow: a misspelt setting would leave its default in force."""
    for name in settings:
        if name not in _STOCK_SETTINGS:
            own = signature(CareVectorStore.__init__).parameters
            close = get_close_matches(name, [*own, *_STOCK_SETTINGS], n=1)
            raise InputError(
                f"CareVectorStore has no setting {name!r}" + (f"; is {close[0]!r} meant?" if close else "")
            )
