"""What a store reads from Qdrant, each operation once: `CareVectorStore` makes the calls, sync or async."""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.care.filters import build_filter, of_documents
from llama_index.vector_stores.care.points import (
    as_point_id,
    having_ids,
    read_node,
    vector_of,
)
from llama_index.vector_stores.care.schema import Pinned, Wanted, pin
from llama_index.vector_stores.care.search import Question, clipped, diverse, question, weighted
from llama_index.vector_stores.care.steps import Steps, call
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index.vector_stores.qdrant.base import DOCUMENT_ID_KEY
from llama_index.vector_stores.qdrant.utils import HybridFusionCallable
from qdrant_client import models
from typing_extensions import override

from care_qdrant.encoders import bm25
from care_qdrant.search.fusion import Fusion, fused_request
from care_qdrant.search.retriever import CHECK_SECONDS
from care_qdrant.store.contracts import SparseContract

SAMPLE_POINTS = 32
"""Points that are read once to find out who wrote the payloads."""
PAGE_POINTS = 1_000

_LEXICAL = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID)

logger = logging.getLogger(__name__)


class Reading(QdrantVectorStore):
    """The stock store with its state, its filters, and what it reads replaced by ours.

    An operation is a generator of calls (`llama_index.vector_stores.care.steps`); the public methods of
    `CareVectorStore` run it with whichever client there is.
    """

    _wanted: Wanted = PrivateAttr(default_factory=Wanted)
    _pinned: Pinned | None = PrivateAttr(default=None)
    _pinned_at: float = PrivateAttr(default=0.0)
    _check_seconds: float = PrivateAttr(default=CHECK_SECONDS)
    _bm25: SparseContract | None = PrivateAttr(default=None)
    _fusion: Fusion = PrivateAttr(default="linear")
    _own_fusion: HybridFusionCallable | None = PrivateAttr(default=None)

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
        return build_filter(filters, layout.filter_key if layout is not None else str)

    @override
    def _build_query_filter(self, query: VectorStoreQuery) -> models.Filter | None:
        must: list[models.Condition] = []
        if query.doc_ids:
            must.append(self._of_documents(query.doc_ids))
        if query.node_ids:  # `VectorStoreIndex.as_retriever` gives an empty list for all nodes
            must.append(having_ids(query.node_ids))
        if query.filters and query.filters.filters:
            must.append(self._build_subfilter(query.filters))
        return models.Filter(must=must) if must else None

    # The operations. Each is written once, and yields its calls to whichever client there is.

    def _pin(self) -> Steps[Pinned]:
        """Choose and check the vectors of the collection, and find out how to read its payloads; anew when due."""
        now = time.monotonic()
        if self._pinned is None or self._pinned.is_empty or now - self._pinned_at >= self._check_seconds:
            info = yield call("get_collection", self.collection_name)
            sample = yield call("scroll", self.collection_name, limit=SAMPLE_POINTS)
            is_first = self._pinned is None
            self._pinned = pin(info, sample[0], self.collection_name, self._wanted)
            if is_first and self._pinned.unchecked is not None:
                logger.warning(
                    "vector %r of collection %r was made by %s (%s), and nobody says what makes the queries: give "
                    "CareVectorStore(..., embedding=) what embeds them, and another model is refused",
                    self._pinned.vector_name,
                    self.collection_name,
                    self._pinned.unchecked.model,
                    self._pinned.unchecked.fingerprint[:12],
                )
            self._pinned_at = now
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
        if asked.diversity is not None:
            vectors = [vector_of(point, self.dense_vector_name, or_unnamed=True) or [] for point in lists[0]]
            return self.parse_to_query_result(diverse(lists[0], vectors, asked.diversity, asked.top_k))
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
            mmr_threshold=options.get("mmr_threshold", query.mmr_threshold),
        )

    def _terms(self, query: VectorStoreQuery) -> models.SparseVector | None:
        if not query.query_str or self._sparse_query_fn is None:
            return None
        (indices,), (values,) = self._sparse_query_fn([query.query_str])
        return models.SparseVector(indices=indices, values=values) if indices else None

    def _score(self, query_embedding: list[float], node_ids: Sequence[str]) -> Steps[dict[str, float]]:
        yield from self._pin()
        if not node_ids:
            return {}
        answer = yield call(
            "query_points",
            self.collection_name,
            query_embedding,
            using=self.dense_vector_name,
            query_filter=models.Filter(must=[having_ids(node_ids)]),
            limit=len(node_ids),
            with_payload=False,
        )
        scores = {point.id: point.score for point in answer.points}
        return {node_id: scores[found] for node_id in node_ids if (found := as_point_id(node_id)) in scores}

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

    def _selection(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> models.Filter:
        """Match the nodes that have one of the ids and pass the filters; what is not given does not count."""
        must: list[models.Condition] = []
        if node_ids is not None:
            must.append(having_ids(node_ids))
        if filters is not None and filters.filters:
            must.append(self._build_subfilter(filters))
        return models.Filter(must=must or None)

    def _of_documents(self, document_ids: Sequence[str]) -> models.Filter:
        layout = self._pinned.layout if self._pinned is not None else None
        is_foreign = layout is not None and layout.tool not in ("care", "llama-index")
        # Last where our own `add` has them: points of several tools can be in one collection.
        paths = [*layout.document_paths, DOCUMENT_ID_KEY] if layout and is_foreign else [DOCUMENT_ID_KEY]
        return of_documents(list(dict.fromkeys(paths)), document_ids)

    def _shard(self, shard_identifier: Any | None) -> Any | None:
        return self._generate_shard_key_selector(shard_identifier) if shard_identifier is not None else None

    def _bm25_of_queries(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        return as_lists(bm25.query_vector(text) for text in texts)


def as_lists(vectors: Iterable[models.SparseVector]) -> tuple[list[list[int]], list[list[float]]]:
    """Give sparse vectors as the stock store's functions return them."""
    listed = list(vectors)
    return [vector.indices for vector in listed], [vector.values for vector in listed]
