"""All that `CareVectorStore` reads: answers to queries, nodes by id or filter, scores of nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.care.filters import all_of, is_empty, node_filter, query_filter, warn_of_filters
from llama_index.vector_stores.care.index_nodes import IndexNodes
from llama_index.vector_stores.care.modes import (
    has_terms,
    is_blank,
    is_diverse,
    is_hybrid,
    is_lexical,
    made_hybrid,
    require_mode,
)
from llama_index.vector_stores.care.once import OnceLogger
from llama_index.vector_stores.care.points import as_node, as_point_id, as_result, having_ids
from llama_index.vector_stores.care.scores import choose_diverse, clip_scores, fuse_by_scaled_score
from llama_index.vector_stores.care.settings import StoreSettings, shard_keys
from llama_index.vector_stores.care.sparse import StoreTerms
from qdrant_client import models

from care_qdrant import Fallback, Fusion, Hit
from care_qdrant.errors import InputError, counted
from care_qdrant.search.conditions import Keys
from care_qdrant.search.fusion import NEAREST_LEAST
from care_qdrant.search.grouping import Grouping, find_groups
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolve import CollectionResolver
from care_qdrant.search.resolved import ResolvedCollection
from care_qdrant.search.script import script_note

_NOT_RESTRICTED = (
    "collection %r: a query names index and image nodes alone, as the retriever of a LlamaIndex index does in every "
    "query when the index holds such a node. It is not restricted to them, so that text nodes are found; to restrict "
    "it, give qdrant_filters= (of a retriever: vector_store_kwargs=)"
)


@dataclass(frozen=True, slots=True)
class Reader:
    """Searches and reads a collection that was checked, as LlamaIndex asks."""

    resolver: CollectionResolver
    """Source of the keys of the payloads."""
    terms: StoreTerms
    fusion: Fusion
    """Fusion of dense and BM25 scores."""
    fallback: Fallback | None
    finds_bm25: bool
    """Whether queries become hybrid by themselves once the collection has BM25."""
    index_nodes: IndexNodes
    warnings: OnceLogger

    def search(
        self,
        resolved: ResolvedCollection,
        query: VectorStoreQuery,
        options: Mapping[str, Any],
        settings: StoreSettings,
    ) -> VectorStoreQueryResult:
        """Answer a query.

        Args:
            resolved: The collection.
            query: Query of LlamaIndex.
            options: Those of the stock store, and those of `Retriever.search`: score_threshold, group_by, group_size.
            settings: Settings of the store.
        """
        if resolved.bm25 is not None:
            query = made_hybrid(query)
        if is_blank(query):
            return as_result([])
        asked = self._asked(resolved, query, options, settings)
        if self.fallback is not None and asked.vector is not None and query.query_str:
            [vector] = self.fallback.improve(resolved, [query.query_str], [asked.vector], asked.shard_key)
            asked = replace(asked, vector=vector)
        grouping = self._grouping(resolved, asked, options)
        [lists] = find(resolved, [asked]) if grouping is None else [find_groups(resolved, [asked], grouping)]
        self._tell_script(query.query_str or "", lists, settings)
        if settings.hybrid_fusion_fn is not None and asked.is_hybrid:
            return settings.hybrid_fusion_fn(*map(as_result, lists), alpha=asked.alpha_in(resolved), top_k=asked.top_k)
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

    def nodes(
        self,
        resolved: ResolvedCollection,
        node_ids: Sequence[str] | None,
        filters: MetadataFilters | None,
        limit: int | None,
        shard: Any | None,
    ) -> list[BaseNode]:
        """Return the nodes that have one of the ids and pass the filters, with their vectors; None does not count."""
        keys = self._keys(resolved, filters)
        pages = resolved.collection.of_shard(shard).scroll(
            where=node_filter(node_ids, filters, keys),
            limit=limit,
            vectors=[resolved.vector_name] if resolved.vector_name else True,
            as_seen=True,
        )
        return [as_node(resolved.read(record)) for page in pages for record in page]

    def _grouping(self, resolved: ResolvedCollection, asked: Query, options: Mapping[str, Any]) -> Grouping | None:
        """Return the groups that the options ask for, and refuse what Qdrant's own scores are needed for."""
        given = [name for name in ("group_by", "group_size", "score_threshold") if options.get(name) is not None]
        if given and asked.is_hybrid and asked.fusion is None:
            raise InputError(
                f"{given[0]} needs a fusion by Qdrant, and here two lists are fused by scores without a common scale: "
                'give CareVectorStore(fusion="rrf") to group, or ask in another mode than hybrid'
            )
        grouped = [name for name in given if name != "score_threshold"]
        if not grouped:
            return None
        if asked.with_vectors:
            raise InputError(f"{grouped[0]} is not for queries of mode MMR, which choose their nodes by another rule")
        keys = self.resolver.keys(resolved)
        return Grouping.by(options.get("group_by"), options.get("group_size") or 1, resolved.collection, keys)

    def _asked(
        self, resolved: ResolvedCollection, query: VectorStoreQuery, options: Mapping[str, Any], settings: StoreSettings
    ) -> Query:
        """Return a query as the core takes it."""
        require_mode(query, resolved, is_hybrid=settings.enable_hybrid, finds_bm25=self.finds_bm25)
        params = options.get("search_params")
        terms = self.terms.of_query(resolved, query) if has_terms(query) else None
        own_top_k = query.hybrid_top_k if is_hybrid(query) else query.sparse_top_k if is_lexical(query) else None
        return Query(
            None if is_lexical(query) else query.query_embedding,
            terms,
            own_top_k or query.similarity_top_k,
            filter=all_of(options.get("qdrant_filters"), self._filter(resolved, query, settings)),
            params=models.SearchParams(**params) if isinstance(params, dict) else params,
            fusion=self._fusion_by_qdrant(resolved, settings),
            alpha=query.alpha,
            score_threshold=options.get("score_threshold"),
            sparse_top_k=query.sparse_top_k,
            with_vectors=is_diverse(query),
            shard_key=shard_keys(settings, options.get("shard_identifier")),
        )

    def _fusion_by_qdrant(self, resolved: ResolvedCollection, settings: StoreSettings) -> Fusion | None:
        """Return the fusion of two lists; None where LlamaIndex's way is taken, for scores of unknown scale."""
        has_scale = resolved.bm25 is not None or self.fusion != "linear"
        return self.fusion if has_scale and settings.hybrid_fusion_fn is None else None

    def _filter(
        self, resolved: ResolvedCollection, query: VectorStoreQuery, settings: StoreSettings
    ) -> models.Filter | None:
        """Return the filter of a query, and log once if it names index nodes alone."""
        keys = self._keys(resolved, query.filters)
        if query.node_ids and self.index_nodes.are_a_list(resolved.collection, query.node_ids):
            self.warnings.warn("index nodes", _NOT_RESTRICTED, settings.collection_name)
            query = replace(query, node_ids=None)
        return query_filter(query, resolved.layout, keys)

    def _keys(self, resolved: ResolvedCollection, filters: MetadataFilters | None) -> Keys:
        """Return the keys of a collection that filters need, and log once of each filter that misses them."""
        if filters is None or is_empty(filters):
            return Keys()
        keys = self.resolver.keys(resolved)
        warn_of_filters(filters, resolved.collection, keys, self.warnings)
        return keys

    def _tell_script(self, question: str, lists: Sequence[Sequence[Hit]], settings: StoreSettings) -> None:
        """Log once that a question is in the other script of Chinese than all that it found."""
        if self.warnings.has_warned("script"):
            return
        if (note := script_note(question, chain(*lists))) is not None:
            self.warnings.warn("script", "collection %r: %s", settings.collection_name, note)


def score_nodes(
    resolved: ResolvedCollection, query_embedding: list[float], node_ids: Sequence[str]
) -> dict[str, float]:
    """Return the score of a query with the stored vector of each node, the greatest for the nearest.

    Where the vectors are compared by a distance, it is the negative distance. Nodes without a vector are left out.
    """
    request = models.QueryRequest(
        query=query_embedding,
        using=resolved.vector_name,
        filter=models.Filter(must=[having_ids(node_ids)]),
        limit=len(node_ids),
    )
    [points] = resolved.collection.search(f"scoring {counted(len(node_ids), 'node')}", [request])
    sign = -1 if resolved.distance in NEAREST_LEAST else 1
    scores: dict[Any, float] = {point.id: sign * point.score for point in points}
    return {node_id: scores[point_id] for node_id in node_ids if (point_id := as_point_id(node_id)) in scores}
