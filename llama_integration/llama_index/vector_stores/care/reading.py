"""Reads for `CareVectorStore`: queries, nodes by id or filter, scores of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.care.filters import document_filter, metadata_conditions
from llama_index.vector_stores.care.index_nodes import IndexNodes
from llama_index.vector_stores.care.modes import searched_by
from llama_index.vector_stores.care.once import OnceLogger
from llama_index.vector_stores.care.points import as_node, as_point_id, as_result, having_ids
from llama_index.vector_stores.care.settings import QueryOptions, StoreSettings, shard_keys
from llama_index.vector_stores.care.sparse import StoreTerms
from qdrant_client import models

from care_qdrant import Fallback, Fusion, Hit
from care_qdrant.errors import InputError, counted
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
        options: QueryOptions,
        settings: StoreSettings,
    ) -> VectorStoreQueryResult:
        """Answer a query; one with a blank text, or for the nodes of no document, gets no hits."""
        question = query.query_str or ""
        is_blank = query.query_embedding is None and query.query_str is not None and not question.strip()
        # An index names no node where it has none to name, which restricts nothing; but it never names documents.
        if is_blank or query.doc_ids == []:
            return as_result([])
        asked = self._asked(resolved, query, options, settings)
        if self.fallback is not None and asked.vector is not None and question:
            [vector] = self.fallback.improve(resolved, [question], [asked.vector], asked.shard_key)
            asked = replace(asked, vector=vector)
        grouping = self._grouping(resolved, asked, options)
        [lists] = find(resolved, [asked]) if grouping is None else [find_groups(resolved, [asked], grouping)]
        if resolved.distance in NEAREST_LEAST and asked.vector is not None and not (asked.is_hybrid and asked.fusion):
            # LlamaIndex, its fusions and its cutoffs take the greatest score for the best.
            lists = [[replace(hit, score=0.0 - hit.score) for hit in lists[0]], *lists[1:]]
        self._warn_of_script(question, lists, settings)
        if settings.hybrid_fusion_fn is not None and asked.is_hybrid:
            return settings.hybrid_fusion_fn(*map(as_result, lists), alpha=asked.alpha_in(resolved), top_k=asked.top_k)
        hits: list[Hit] = lists[0] if lists else []
        if asked.with_vectors:
            threshold = query.mmr_threshold if options.mmr_threshold is None else options.mmr_threshold
            if threshold is not None and not 0 <= threshold <= 1:
                raise InputError(f"mmr_threshold is {threshold}; expected a number from 0 to 1")
            hits = _choose_diverse(hits, asked.vector or [], threshold, asked.top_k)
        elif asked.is_hybrid and asked.fusion is None:
            hits = _fuse_by_scaled_score(lists[0], lists[1], asked.alpha_in(resolved), asked.top_k)
        elif asked.is_hybrid:
            hits = _clip_scores(hits)
        return as_result(hits)

    def nodes(
        self,
        resolved: ResolvedCollection,
        node_ids: Sequence[str] | None,
        filters: MetadataFilters | None,
        limit: int | None,
        shard: Any | None,
    ) -> list[BaseNode]:
        """Return the nodes that have one of the ids and pass the filters, with their vectors; None selects all."""
        must = [] if node_ids is None else [having_ids(node_ids)]
        pages = resolved.collection.of_shard(shard).scroll(
            where=models.Filter(must=[*must, *self._conditions(resolved, filters)] or None),
            limit=limit,
            vectors=[resolved.vector_name] if resolved.vector_name else True,
            as_seen=True,
        )
        return [as_node(resolved.read(record)) for page in pages for record in page]

    def _grouping(self, resolved: ResolvedCollection, asked: Query, options: QueryOptions) -> Grouping | None:
        """Return the groups that the options ask for; refuse options that need a fusion by Qdrant if there is none."""
        given = [name for name in ("group_by", "group_size", "score_threshold") if getattr(options, name) is not None]
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
        group_size = 1 if options.group_size is None else options.group_size
        return Grouping.by(options.group_by, group_size, resolved.collection, self.resolver.keys(resolved))

    def _asked(
        self, resolved: ResolvedCollection, query: VectorStoreQuery, options: QueryOptions, settings: StoreSettings
    ) -> Query:
        """Translate a query of LlamaIndex into one of the core."""
        by = searched_by(query, resolved, is_hybrid=settings.enable_hybrid, finds_bm25=self.finds_bm25)
        terms = None
        if by.text is not None:
            terms = self.terms.of_query(resolved, by.text, has_weights=by.has_weights)
        must: list[models.Condition] = [] if options.qdrant_filters is None else [options.qdrant_filters]
        if query.doc_ids:
            must.append(document_filter(query.doc_ids, resolved.layout))
        if query.node_ids and not self._is_a_list(resolved, query.node_ids, settings):
            must.append(having_ids(query.node_ids))
        must += self._conditions(resolved, query.filters)
        has_scale = resolved.bm25 is not None or self.fusion != "linear"
        asked = Query(
            by.vector,
            terms,
            by.top_k,
            filter=models.Filter(must=must) if must else None,
            params=options.search_params,
            fusion=self.fusion if has_scale and settings.hybrid_fusion_fn is None else None,
            alpha=query.alpha,
            score_threshold=options.score_threshold,
            sparse_top_k=query.sparse_top_k,
            with_vectors=by.is_diverse,
            shard_key=shard_keys(settings, options.shard_identifier),
        )
        if asked.score_threshold is not None and asked.is_nearest_least(resolved):
            return replace(asked, score_threshold=-asked.score_threshold)
        return asked

    def _conditions(self, resolved: ResolvedCollection, filters: MetadataFilters | None) -> list[models.Condition]:
        keys = partial(self.resolver.keys, resolved)
        return metadata_conditions(filters, resolved.collection, keys, self.warnings)

    def _is_a_list(self, resolved: ResolvedCollection, node_ids: Sequence[str], settings: StoreSettings) -> bool:
        """Return whether an index named its whole list of nodes, which restricts nothing, and log that once."""
        is_a_list = self.index_nodes.are_a_list(resolved.collection, node_ids)
        if is_a_list:
            self.warnings.warn("index nodes", _NOT_RESTRICTED, settings.collection_name)
        return is_a_list

    def _warn_of_script(self, question: str, lists: Sequence[Sequence[Hit]], settings: StoreSettings) -> None:
        """Log once that a question and all its hits are in different scripts of Chinese."""
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


# Orders and scores that Qdrant does not compute


def _fuse_by_scaled_score(dense: Sequence[Hit], sparse: Sequence[Hit], alpha: float, top_k: int) -> list[Hit]:
    """Fuse lists whose scores have no common scale: each between 0 for its last and 1 for its first hit.

    For sparse encoders whose scores have no known scale; BM25 has a better fusion (`care_qdrant.search.fusion`).
    """
    hits = {hit.point_id: hit for hit in (*sparse, *dense)}
    scores = dict.fromkeys(hits, 0.0)
    for listed, weight in ((dense, alpha), (sparse, 1 - alpha)):
        for hit, score in zip(listed, _scaled(listed), strict=True):
            scores[hit.point_id] += weight * score
    best = sorted(scores, key=lambda point_id: -scores[point_id])[:top_k]
    return [replace(hits[point_id], score=scores[point_id]) for point_id in best]


def _choose_diverse(hits: Sequence[Hit], query: list[float], threshold: float | None, top_k: int) -> list[Hit]:
    """Choose hits by maximal marginal relevance, as LlamaIndex's own store does, with its scores."""
    vectors = [list(hit.vector or ()) for hit in hits]
    scores, places = get_top_k_mmr_embeddings(query, vectors, similarity_top_k=top_k, mmr_threshold=threshold)
    return [replace(hits[place], score=score) for score, place in zip(scores, places, strict=True)]


def _clip_scores(hits: Sequence[Hit]) -> list[Hit]:
    """Return hits with scores from 0 to 1: very long matches of BM25 go beyond, and opposed vectors below."""
    return [hit if 0.0 <= hit.score <= 1.0 else replace(hit, score=min(max(hit.score, 0.0), 1.0)) for hit in hits]


def _scaled(hits: Sequence[Hit]) -> list[float]:
    if not hits:
        return []
    best, worst = hits[0].score, hits[-1].score
    return [(hit.score - worst) / (best - worst) if best != worst else 1.0 for hit in hits]
