"""`CareVectorStore`: LlamaIndex's Qdrant store, made safe on collections that it did not create."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol, cast

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import (
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.embeddings.care.nodes import embeds_other_metadata
from llama_index.vector_stores.care.facade import AsyncView
from llama_index.vector_stores.care.filters import build_filter, of_documents
from llama_index.vector_stores.care.points import (
    KEPT_PAYLOAD,
    as_point_id,
    check_ids,
    merge_operations,
    read_node,
    vector_of,
)
from llama_index.vector_stores.care.schema import Pinned, Wanted, pin
from llama_index.vector_stores.care.search import Question, clipped, question, weighted
from llama_index.vector_stores.care.steps import Steps, arun, call, run
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index.vector_stores.qdrant.base import DEFAULT_DENSE_VECTOR_NAME, DOCUMENT_ID_KEY
from llama_index.vector_stores.qdrant.utils import HybridFusionCallable
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from typing_extensions import override

from care_qdrant import bm25
from care_qdrant.collection import METADATA_KEY, SparseContract, VectorContract
from care_qdrant.connection import is_embedded
from care_qdrant.create import SPARSE_VECTOR_NAME
from care_qdrant.errors import SchemaMismatch
from care_qdrant.fusion import Fusion, fused_request

SAMPLE_POINTS = 32
"""Points that are read once to find out who wrote the payloads."""
PAGE_POINTS = 1_000

_LEXICAL = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID)

logger = logging.getLogger(__name__)


class HasContract(Protocol):
    """A `CareEmbedding`, a `CareModel`: what knows the model that makes the vectors."""

    def contract(self) -> VectorContract:
        """Give what a collection must say of its vectors."""


class CareVectorStore(QdrantVectorStore):
    """Searches one named vector of a collection, with the model that made it, whoever wrote the payloads.

    What differs from ``QdrantVectorStore``, which fails silently in each case:

    - The vector is the one that was asked for, also beside an unnamed one, and also in a collection that is created.
    - With ``embedding=`` the collection's fingerprint is checked, and a collection that is created carries it.
    - Payloads of LangChain, Haystack and plain points are read with ids, metadata, filters and reference ids; a point
      without text does not fail a query.
    - `add` keeps the vectors that other models have on a point, and `get_nodes` gives all of them.
    - NE, NIN, CONTAINS, ANY and ALL filters mean what LlamaIndex says they mean.
    - Hybrid queries use the collection's BM25 vector; scores are in 0…1, and ``alpha=0.0`` is 0, sync and async.
    - One client serves sync and async callers.

    Example:
        >>> from qdrant_client import QdrantClient
        >>> from llama_index.embeddings.care import CareEmbedding
        >>> from llama_index.vector_stores.care import CareVectorStore
        >>> client = QdrantClient(path="qdrant")
        >>> store = CareVectorStore("corpus", client, embedding=CareEmbedding())  # doctest: +SKIP
    """

    _wanted: Wanted = PrivateAttr(default_factory=Wanted)
    _pinned: Pinned | None = PrivateAttr(default=None)
    _bm25: SparseContract | None = PrivateAttr(default=None)
    _fusion: Fusion = PrivateAttr(default="linear")
    _own_fusion: HybridFusionCallable | None = PrivateAttr(default=None)

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
        text_path: str | None = None,
        fusion: Fusion = "linear",
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
            text_path: Where payloads hold the text, as ``"body"`` or ``"document.body"``; None finds out.
            fusion: Of hybrid queries with BM25 (`care_qdrant.fusion`); ``hybrid_fusion_fn`` takes its place.
            dense_vector_name: The stock store's word for ``vector_name``.
            settings: Of ``QdrantVectorStore``: they are its own, and passed on as they are.

        Raises:
            InputError: the vector is not there, or no point of the collection has a text.
            ContractError: another model made the vectors.
        """
        contract = embedding.contract() if embedding is not None else None
        vector_name = vector_name or dense_vector_name
        default_name = contract.model if contract is not None else DEFAULT_DENSE_VECTOR_NAME
        hybrid = bool(settings.get("enable_hybrid"))
        own_sparse = bool(settings.get("sparse_query_fn") or settings.get("fastembed_sparse_model"))
        if hybrid and not own_sparse:
            settings.update(sparse_doc_fn=self._bm25_of_documents, sparse_query_fn=self._bm25_of_queries)
        super().__init__(
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
        self._own_fusion = settings.get("hybrid_fusion_fn")
        self._wanted = Wanted(
            vector_name=vector_name,
            sparse_vector_name=sparse_vector_name,
            contract=contract,
            fingerprint=fingerprint,
            text_path=text_path,
            hybrid=self.enable_hybrid,
            bm25=hybrid and not own_sparse,
        )
        if self._client is not None and self._collection_initialized:
            run(self._pin(), self._client)

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareVectorStore"

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

    @override
    def parse_to_query_result(self, response: list[Any]) -> VectorStoreQueryResult:
        layout = self._pinned.layout if self._pinned is not None else None
        nodes = [read_node(point, layout) for point in response]
        for node, point in zip(nodes, response, strict=True):
            if node.embedding is None:
                node.embedding = vector_of(point, self.dense_vector_name, or_unnamed=not self._wanted.is_bound)
        scores = [getattr(point, "score", 1.0) for point in response]
        return VectorStoreQueryResult(nodes=nodes, similarities=scores, ids=[str(point.id) for point in response])

    @override
    def _detect_vector_format(self, collection_name: str) -> None:
        """Nothing: the stock store guesses here, and takes the unnamed vector where there is one."""

    @override
    async def _adetect_vector_format(self, collection_name: str) -> None:
        """Nothing, as `_detect_vector_format`."""

    @override
    def _build_subfilter(self, filters: MetadataFilters) -> models.Filter:
        layout = self._pinned.layout if self._pinned is not None else None
        return build_filter(filters, layout.filter_key if layout is not None else str, self._stock_condition)

    @override
    def _build_query_filter(self, query: VectorStoreQuery) -> models.Filter | None:
        must: list[models.Condition] = []
        if query.doc_ids:
            must.append(self._of_documents(query.doc_ids))
        if query.node_ids:
            must.append(models.HasIdCondition(has_id=list(query.node_ids)))
        if query.filters and query.filters.filters:
            must.append(self._build_subfilter(query.filters))
        return models.Filter(must=must) if must else None

    def _stock_condition(self, one: MetadataFilter) -> models.Condition:
        (condition,) = cast(list[models.Condition], super()._build_subfilter(MetadataFilters(filters=[one])).must)
        return condition

    # The operations. Each is written once, and yields its calls to whichever client there is.

    def _pin(self) -> Steps[Pinned]:
        """Choose and check the vectors of the collection, and find out how to read its payloads; only once."""
        if self._pinned is None:
            info = yield call("get_collection", self.collection_name)
            sample = yield call("scroll", self.collection_name, limit=SAMPLE_POINTS)
            self._pinned = pin(info, sample[0], self.collection_name, self._wanted)
            self.dense_vector_name = self._pinned.vector_name
            self.sparse_vector_name = self._pinned.sparse_vector_name
            self._bm25 = self._pinned.bm25 or self._bm25
            self._legacy_vector_format = self._pinned.vector_name == ""
            self._collection_initialized = True
        return self._pinned

    def _query(self, query: VectorStoreQuery, options: dict[str, Any]) -> Steps[VectorStoreQueryResult]:
        yield from self._pin()
        asked = self._question(query, options)
        requests = asked.requests()
        if asked.dense is not None and asked.sparse is not None and self._fuses_on_server():
            fused = fused_request(asked.dense, asked.sparse, fusion=self._fusion, alpha=asked.alpha, limit=asked.top_k)
            requests = [fused.model_copy(update={"shard_key": asked.shard_key})]
        if not requests:
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        answers = yield call("query_batch_points", self.collection_name, requests=requests)
        return self._together(asked, [answer.points for answer in answers])

    def _together(self, asked: Question, lists: list[list[models.ScoredPoint]]) -> VectorStoreQueryResult:
        if not asked.is_hybrid:
            return self.parse_to_query_result(lists[0])
        if self._fuses_on_server():
            return self.parse_to_query_result(clipped(lists[0]))
        if self._own_fusion is None:
            return self.parse_to_query_result(weighted(lists[0], lists[1], asked.alpha, asked.top_k))
        results = [self.parse_to_query_result(points) for points in lists]
        return self._own_fusion(*results, alpha=asked.alpha, top_k=asked.top_k)

    def _fuses_on_server(self) -> bool:
        return self._bm25 is not None and self._own_fusion is None

    def _question(self, query: VectorStoreQuery, options: dict[str, Any]) -> Question:
        """Put a query into Qdrant's words; the options are those of the stock store."""
        if query.mode in _LEXICAL and not self.enable_hybrid:
            raise ValueError(f"a {query.mode.value} query needs CareVectorStore(..., enable_hybrid=True)")
        own_filter, params = options.get("qdrant_filters"), options.get("search_params")
        return question(
            query,
            self._terms(query) if query.mode in _LEXICAL else None,
            vector_name=self.dense_vector_name,
            sparse_vector_name=self.sparse_vector_name,
            filter=own_filter if own_filter is not None else self._build_query_filter(query),
            params=models.SearchParams(**params) if isinstance(params, dict) else params,
            shard_key=self._shard(options.get("shard_identifier")),
        )

    def _terms(self, query: VectorStoreQuery) -> models.SparseVector | None:
        if not query.query_str or self._sparse_query_fn is None:
            return None
        (indices,), (values,) = self._sparse_query_fn([query.query_str])
        return models.SparseVector(indices=indices, values=values) if indices else None

    def _score(self, query_embedding: list[float], node_ids: Sequence[str]) -> Steps[dict[str, float]]:
        yield from self._pin()
        asked = {point_id: node_id for node_id in node_ids if (point_id := as_point_id(node_id)) is not None}
        if not asked:
            return {}
        answer = yield call(
            "query_points",
            self.collection_name,
            query_embedding,
            using=self.dense_vector_name,
            query_filter=models.Filter(must=[models.HasIdCondition(has_id=list(asked))]),
            limit=len(asked),
            with_payload=False,
        )
        return {asked[str(point.id)]: point.score for point in answer.points}

    def _get_nodes(
        self,
        node_ids: list[str] | None,
        filters: MetadataFilters | None,
        limit: int | None,
        shard_identifier: Any | None,
    ) -> Steps[list[BaseNode]]:
        yield from self._pin()
        nodes: list[BaseNode] = []
        offset = None
        while limit is None or len(nodes) < limit:
            records, offset = yield call(
                "scroll",
                self.collection_name,
                self._selection(node_ids, filters),
                limit=min(PAGE_POINTS, limit - len(nodes)) if limit is not None else PAGE_POINTS,
                offset=offset,
                with_vectors=[self.dense_vector_name] if self.dense_vector_name else True,
                shard_key_selector=self._shard(shard_identifier),
            )
            nodes.extend(self.parse_to_query_result(records).nodes or ())
            if offset is None:
                break
        return nodes

    def _merge(self, nodes: Sequence[BaseNode], shard_identifier: Any | None) -> Steps[bool]:
        """Write nodes beside the vectors of other models. False: there are none, so that upserting them is as good."""
        if not nodes:
            return False
        check_ids(nodes)
        self._warn_of_metadata(nodes)
        if not (yield call("collection_exists", self.collection_name)):
            yield from self._create(nodes)
        pinned = yield from self._pin()
        if not pinned.has_other_vectors:
            return False
        shard = self._shard(shard_identifier)
        points, _ = self._build_points(list(nodes), self.sparse_vector_name)
        for batch in iter_batch(points, self.batch_size):
            ids = [point.id for point in batch]
            stored = yield call("retrieve", self.collection_name, ids, KEPT_PAYLOAD, shard_key_selector=shard)
            yield call("batch_update_points", self.collection_name, merge_operations(batch, stored, shard), wait=True)
        return True

    def _create(self, nodes: Sequence[BaseNode]) -> Steps[None]:
        """Create the collection with named vectors and, when the model is known, its contract."""
        contract, dim = self._wanted.contract, len(nodes[0].get_embedding())
        if contract is not None and contract.dim != dim:
            raise SchemaMismatch(
                f"the nodes for collection {self.collection_name!r} have vectors of {dim} dimensions, but model "
                f"{contract.model!r} gives {contract.dim}: another model embedded them"
            )
        if self._wanted.bm25:
            average = bm25.average_length(node.get_content(MetadataMode.EMBED) for node in nodes)
            self._bm25 = SparseContract(bm25.ANALYSER, bm25.DEFAULT_K1, bm25.DEFAULT_B, average)
        try:
            yield call("create_collection", self.collection_name, **self._configuration(dim))
        except (ValueError, UnexpectedResponse) as error:
            if "already exists" not in str(error):
                raise
        for shard_key in self._shard_keys or ():
            yield call("create_shard_key", self.collection_name, shard_key)
        for index in self._payload_index_list():
            yield call("create_payload_index", self.collection_name, **index)

    def _configuration(self, dim: int) -> dict[str, Any]:
        dense = self._dense_config or models.VectorParams(size=dim, distance=models.Distance.COSINE)
        modifier = models.Modifier.IDF if self._wanted.bm25 else None
        sparse = self._sparse_config or models.SparseVectorParams(modifier=modifier)
        contracts = {
            name: asdict(contract)
            for name, contract in (
                (self.dense_vector_name, self._wanted.contract),
                (self.sparse_vector_name, self._bm25),
            )
            if contract is not None
        }
        return {
            "vectors_config": {self.dense_vector_name: dense},
            "sparse_vectors_config": {self.sparse_vector_name: sparse} if self.enable_hybrid else None,
            "quantization_config": self._quantization_config,
            "shard_number": self._shard_number,
            "replication_factor": self._replication_factor,
            "sharding_method": self._sharding_method,
            "write_consistency_factor": self._write_consistency_factor,
            "metadata": {METADATA_KEY: contracts} if contracts else None,
        }

    def _payload_index_list(self) -> list[dict[str, Any]]:
        """Give the payload indexes to create; the embedded database has none."""
        if is_embedded(cast(QdrantClient, self._client or self._aclient)):
            return []
        keyword = models.PayloadSchemaType.KEYWORD
        document_id = [{"field_name": DOCUMENT_ID_KEY, "field_schema": keyword}] if self.index_doc_id else []
        return [*document_id, *(self._payload_indexes or ())]

    def _delete_document(self, document_id: str, shard_identifier: Any | None) -> Steps[None]:
        yield from self._pin()
        selection = self._of_documents([document_id])
        yield call("delete", self.collection_name, selection, shard_key_selector=self._shard(shard_identifier))

    def _delete_nodes(
        self, node_ids: list[str] | None, filters: MetadataFilters | None, shard_identifier: Any | None
    ) -> Steps[None]:
        yield from self._pin()
        selection = self._selection(node_ids, filters)
        yield call("delete", self.collection_name, selection, shard_key_selector=self._shard(shard_identifier))

    def _selection(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> models.Filter:
        """Match the nodes that have one of the ids and pass the filters; what is not given does not count."""
        must: list[models.Condition] = []
        if node_ids is not None:
            must.append(models.HasIdCondition(has_id=list(node_ids)))
        if filters is not None and filters.filters:
            must.append(self._build_subfilter(filters))
        return models.Filter(must=must or None)

    def _of_documents(self, document_ids: Sequence[str]) -> models.Filter:
        layout = self._pinned.layout if self._pinned is not None else None
        is_foreign = layout is not None and layout.tool not in ("care", "llama-index")
        return of_documents(layout.document_paths if layout and is_foreign else [DOCUMENT_ID_KEY], document_ids)

    def _shard(self, shard_identifier: Any | None) -> Any | None:
        return self._generate_shard_key_selector(shard_identifier) if shard_identifier is not None else None

    def _bm25_of_queries(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        return _as_lists(bm25.query_vector(text) for text in texts)

    def _bm25_of_documents(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        assert self._bm25 is not None, "set when the collection is pinned or created"
        k1, b, average = self._bm25.k1, self._bm25.b, self._bm25.average_length
        return _as_lists(bm25.document_vector(text, average_length=average, k1=k1, b=b) for text in texts)

    def _warn_of_metadata(self, nodes: Sequence[BaseNode]) -> None:
        leaking = next((node for node in nodes if embeds_other_metadata(node)), None)
        if leaking is not None:
            logger.warning(
                "node %s of collection %r was embedded with its metadata in front of the text, unlike what care-ingest "
                "writes: put CareNodeText() into transformations= (keys: %s)",
                leaking.node_id,
                self.collection_name,
                ", ".join(sorted(leaking.metadata)),
            )


def _as_lists(vectors: Iterable[models.SparseVector]) -> tuple[list[list[int]], list[list[float]]]:
    """Give sparse vectors as the stock store's functions return them."""
    listed = list(vectors)
    return [vector.indices for vector in listed], [vector.values for vector in listed]
