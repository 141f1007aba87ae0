"""`Retriever`: queries in, hits out. It loads the query encoder and never the document encoder."""

import logging
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from qdrant_client import QdrantClient, models

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.encoders.terms.sparse import SparseQuery, SparseQueryEncoder
from care_qdrant.encoders.usable import require_texts
from care_qdrant.errors import InputError, UnusableText, counted, require_choice
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.search.conditions import Keys, MandatoryConditions
from care_qdrant.search.fallback import Fallback, OnFallback
from care_qdrant.search.fusion import Fusion, candidates, require_fusion
from care_qdrant.search.grouping import Grouping, find_groups
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolve import CHECK_SECONDS, CollectionResolver
from care_qdrant.search.resolved import ResolvedCollection, StoreConfig
from care_qdrant.types import Hit, TermVector, Vectors, is_blank

if TYPE_CHECKING:
    from care_qdrant.model.care_model import CareModel

logger = logging.getLogger(__name__)

Mode = Literal["auto", "dense", "sparse", "hybrid"]
"""``auto`` is hybrid where the collection has a BM25 vector of this package, and dense elsewhere."""

BATCH_QUERIES = 64
"""Largest number of queries of a request, and of a batch of the query encoder."""

MOST_HITS = 2**32
"""Largest number of hits to ask for: more than a collection has, and a number that every server and program reads."""

SEARCH_POLICY = RetryPolicy(attempts=3, base_seconds=0.2, cap_seconds=2.0)
"""Retries of a search: fewer than those of ingestion, because a person waits for the answer."""


class Retriever:
    """Searches one collection with one model, after checking that the two belong together, and again every half minute.

    Example::

        with open_client(path=Path("qdrant")) as client:
            retriever = Retriever(client, "corpus", CareModel.load())
            [hits] = retriever.search(["糖尿病人能吃西瓜吗"], top_k=5)
    """

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        model: "CareModel | None" = None,
        *,
        mode: Mode = "auto",
        vector_name: str | None = None,
        sparse_vector_name: str | None = None,
        sparse_encoder: SparseQueryEncoder | None = None,
        fusion: Fusion | None = None,
        alpha: float | None = None,
        task: str | None = None,
        params: models.SearchParams | None = None,
        shard_key: models.ShardKeySelector | None = None,
        unique_documents: bool = True,
        fallback: Fallback | None = None,
        other_models: Sequence["CareModel"] = (),
        check_seconds: float = CHECK_SECONDS,
        mandatory: MandatoryConditions | None = None,
    ) -> None:
        """Set up a search; nothing is read before the first one.

        Args:
            client: An open Qdrant.
            collection: Name or alias.
            model: The model whose query encoder is used; only a sparse search does without.
            mode: Search by vectors of the model, by BM25, or by both; ``auto`` takes both where the collection has
                both. In a hybrid search the terms of a query count what the model has learned
                (`CareModel.query_terms`).
            vector_name: Name of the dense vector; None takes the one that this model made.
            sparse_vector_name: Name of the BM25 vector; None takes the one that is there.
            sparse_encoder: Makes queries for the vector of ``sparse_vector_name`` where another encoder wrote that
                (`care_qdrant.encoders.terms.sparse`); nothing checks that it fits the stored vectors.
            fusion: Fusion of the two lists of a hybrid search (`care_qdrant.search.fusion`); None is ``linear``, and
                ``rrf`` with a ``sparse_encoder``.
            alpha: Share of the dense list in the fusions ``linear`` and ``rrf``, from 0 to 1. None takes 0.5 for
                ``rrf``; for ``linear`` it takes what the model's card or `care learn` says, else what is measured at
                the first search (`care_qdrant.search.share`).
            task: Name of the task whose prompt queries get; None is the model's own prompt.
            params: Parameters of Qdrant for the dense vector: exact, hnsw_ef, quantization, acorn.
            shard_key: Shards to search in a collection with shards by key; None searches all.
            unique_documents: Return each document once, by its best chunk, unless a search groups by a key.
            fallback: The model that made the vectors, for the queries that a learned encoder is least sure of; it
                costs one more dense search for each query.
            other_models: Models to which ``care switch`` may switch the collection, or from which it did. At its next
                check this object encodes with the one whose vector the collection names as active.
            check_seconds: Time that a check of the contract holds; it costs two short requests.
            mandatory: Conditions that every search gets, and all that it counts and samples: as if no other points were
                there. None searches all points.

        Raises:
            InputError: The arguments do not fit together.
        """
        require_choice("mode", mode, get_args(Mode))
        if fusion is not None:
            require_fusion(fusion)
        if mode != "sparse" and model is None:
            what = "search" if mode == "auto" else f"{mode} search"
            raise InputError(f"a {what} needs a model; only a sparse one does without")
        if alpha is not None and not 0 <= alpha <= 1:
            raise InputError(f"alpha is {alpha}; it is the share of the dense list, from 0 to 1")
        self._collection = Collection(client, collection, SEARCH_POLICY, mandatory=mandatory)
        encoding = [] if mode == "sparse" else [known for known in (model, *other_models) if known is not None]
        self._models = {known.fingerprint: known for known in encoding}
        self._prompts = {key: known.query_prompt(task) if task else None for key, known in self._models.items()}
        if sparse_encoder is not None and (sparse_vector_name is None or mode in ("auto", "dense")):
            raise InputError("sparse_encoder= needs sparse_vector_name= and the mode hybrid or sparse")
        if sparse_encoder is not None and fusion == "linear":
            raise InputError(
                "the linear fusion knows the scale of this package's BM25 alone; with sparse_encoder= take rrf"
            )
        self._sparse_encoder = sparse_encoder
        self._mode, self._alpha = mode, alpha
        self._fusion: Fusion = fusion or ("linear" if sparse_encoder is None else "rrf")
        self._params = None if self._collection.is_embedded else params
        self._shard_key = shard_key
        self._unique_documents = unique_documents
        self._fallback = fallback
        self._told: set[str] = set()
        """Warnings that were logged; the variants of this retriever share it."""
        config = StoreConfig(
            dense=mode != "sparse",
            sparse=None if mode == "auto" else mode != "dense",
            bm25=sparse_encoder is None,
            vector_name=vector_name,
            sparse_vector_name=sparse_vector_name,
            alpha=None,
        )
        if self._models:
            first, *others = (_searching_with(known, config) for known in self._models.values())
            config = replace(first, others=tuple(others))
        self._resolver = CollectionResolver(self._collection, config, check_seconds=check_seconds)

    @property
    def mode(self) -> Mode:
        """The mode of the last search, or the one that was asked for where there was none yet."""
        resolved = self._resolver.resolved
        if self._mode != "auto" or resolved is None:
            return self._mode
        return "dense" if resolved.sparse_vector_name is None else "hybrid"

    @property
    def resolved(self) -> ResolvedCollection:
        """The collection and the vectors that are searched, as of the last check; it is made here if that is due."""
        return self._resolver.resolve()

    @property
    def schema(self) -> CollectionSchema:
        """Schema of the collection, as of its last check; it is checked here if that is due."""
        return self.resolved.schema

    @property
    def analyser(self) -> Analyser:
        """Analyser of the BM25 vector that is searched; the one for Chinese if there is no such vector."""
        constants = self.resolved.bm25
        return DEFAULT if constants is None else constants.analyser

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the model, of several the one of the last check; None for a sparse search."""
        resolved = self._resolver.resolved
        return (self._resolver.config if resolved is None else resolved.config).expected

    @property
    def is_plain(self) -> bool:
        """Whether scores have the scale of every search by this model and mode: the caller chose nothing but those."""
        chosen = (self._alpha, *self._prompts.values(), self._shard_key, self._fallback, self._params)
        return self._fusion == "linear" and all(choice is None for choice in chosen)

    @property
    def scale(self) -> str:
        """Description of the scale of scores: equal for searches whose scores can be compared."""
        resolved = self.resolved
        if resolved.sparse_vector_name is None:
            return "dense"
        weights = self._models[resolved.config.expected].term_weights_digest if resolved.config.expected else None
        return f"{resolved.alpha:g} dense, terms {'counted' if weights is None else weights[:16]}"

    def fused_by(self, fusion: Fusion, alpha: float | None) -> "Retriever":
        """Return a retriever that fuses in another way; the two share the collection and its checks."""
        other = copy(self)
        other._fusion, other._alpha = fusion, alpha
        return other

    @property
    def unfinished(self) -> str | None:
        """Warning that the searched vectors are incomplete, since a run is writing them or was interrupted; or None."""
        return self._resolver.resolve().unfinished

    @property
    def keys(self) -> Keys:
        """Keys in the payloads of the collection, with which `parse_filter` reads conditions."""
        return self._resolver.keys(self._resolver.resolve())

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 10,
        filter: models.Filter | None = None,  # noqa: A002  # the word of Qdrant and of LlamaIndex
        *,
        score_threshold: float | None = None,
        group_by: str | None = None,
        group_size: int = 1,
        encode: Callable[[Sequence[str]], Vectors] | None = None,
        on_fallback: OnFallback = lambda _text, _vector, _name: None,
    ) -> list[list[Hit]]:
        """Return the hits of each query, best first.

        Args:
            queries: Texts; a blank one has no hits.
            top_k: Most hits of a query; with ``group_by``, most groups.
            filter: Points to search.
            score_threshold: Least score of a hit, as hits show it: the fused one in a hybrid search. A collection's
                good-match score (`care_qdrant.search.good_match`) is one. Refused for ``rrf`` and ``dbsf``, whose
                scores tell ranks.
            group_by: Payload key whose values make groups in place of documents: the hits of the best group come first,
                and `Hit.group` says the value. A point with a list of values is in several groups, one without the key
                in none.
            group_size: Most hits of a group.
            encode: Makes the query vectors in place of the model's own call: a cache, or batches shared with others.
                Refused with ``other_models``.
            on_fallback: Called with each query that the old model encoded (``fallback``), its vector, and the origin of
                the searched vectors (`care_qdrant.qdrant.schema.CollectionSchema.origin`).

        Returns:
            One list per query, in the order of the queries.

        Raises:
            InputError: The collection, the vector or the key of ``group_by`` is not there.
            ContractError: Another model made the vectors, or another analyser the terms.
            QdrantError: Qdrant refused, or cannot be reached.
        """
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; at least one hit must be asked for")
        if top_k * group_size > MOST_HITS:
            raise InputError(f"top_k times group_size has to be at most {MOST_HITS:,}")
        if encode is not None and len(self._models) > 1:  # at this search, it may be the wrong one
            raise InputError("encode= makes the query vectors of one model, and this search has several: leave it out")
        if filter is not None and not isinstance(filter, models.Filter):
            raise InputError(
                f"filter is a {type(filter).__name__}; expected a qdrant_client.models.Filter, which "
                "care_qdrant.search.conditions.parse_filter makes of conditions such as year>=2020"
            )
        if score_threshold is not None and not math.isfinite(score_threshold):  # null as JSON: no threshold
            raise InputError(f"score_threshold is {score_threshold}; give a finite number, or leave it out")
        try:
            queries = queries if isinstance(queries, str) else list(queries)  # a generator is read once
            require_texts(queries)
            asked = [number for number, query in enumerate(queries) if not is_blank(query)]
        except UnusableText as error:
            raise error.named([f"query {number}" for number in range(len(queries))]) from error
        texts = [queries[number] for number in asked]
        try:
            asked_as = Query(
                None,
                None,
                top_k,
                filter,
                self._params,
                fusion=self._fusion,
                alpha=self._alpha,
                score_threshold=score_threshold,
                shard_key=self._shard_key,
            )
            hits_by_text = self._resolver.use(
                lambda resolved: self._search(
                    resolved, texts, asked_as, self._grouping(resolved, group_by, group_size), encode, on_fallback
                )
            )
        except UnusableText as error:
            raise error.named([f"query {number}" for number in asked]) from error
        answers: list[list[Hit]] = [[] for _ in queries]
        for number, hits in zip(asked, hits_by_text, strict=True):
            answers[number] = hits
        return answers

    def _search(
        self,
        resolved: ResolvedCollection,
        texts: Sequence[str],
        asked_as: Query,
        grouping: Grouping | None,
        encode: Callable[[Sequence[str]], Vectors] | None,
        on_fallback: OnFallback,
    ) -> list[list[Hit]]:
        answers: list[list[Hit]] = []
        for start in range(0, len(texts), BATCH_QUERIES):
            batch = texts[start : start + BATCH_QUERIES]
            try:
                asked = self._queries(resolved, batch, asked_as, encode, on_fallback)
            except UnusableText as error:
                raise UnusableText({start + place: problem for place, problem in error.problems.items()}) from error
            self._log_fewer_candidates(resolved, asked_as.top_k)
            what = f"searching for {counted(len(asked), 'query')}"
            if grouping is None:
                answers += [lists[0] if lists else [] for lists in find(resolved, asked, what)]
            else:
                answers += find_groups(resolved, asked, grouping, what)
        return answers

    def _grouping(self, resolved: ResolvedCollection, group_by: str | None, group_size: int) -> Grouping | None:
        """Return the groups of hits; None where each hit counts for itself."""
        if group_by is None and group_size == 1:
            return Grouping() if self._unique_documents else None
        return Grouping.by(group_by, group_size, resolved.collection, self._resolver.keys(resolved))

    def _queries(
        self,
        resolved: ResolvedCollection,
        texts: Sequence[str],
        asked_as: Query,
        encode: Callable[[Sequence[str]], Vectors] | None,
        on_fallback: OnFallback,
    ) -> list[Query]:
        vectors: Sequence[list[float] | None] = [None] * len(texts)
        if (known := resolved.config.expected) is not None:
            make = encode or partial(self._models[known].encode_query, prompt=self._prompts[known])
            encoded: list[list[float]] = make(texts).tolist()
            if self._fallback is not None:
                encoded = self._fallback.improve(resolved, texts, encoded, self._shard_key, on_fallback)
            vectors = encoded
        is_sparse = resolved.sparse_vector_name is not None
        return [
            replace(asked_as, vector=vector, terms=self._sparse_query(resolved, text) if is_sparse else None)
            for vector, text in zip(vectors, texts, strict=True)
        ]

    def _sparse_query(self, resolved: ResolvedCollection, text: str) -> TermVector | SparseQuery:
        if self._sparse_encoder is not None:
            return self._sparse_encoder(text)
        assert resolved.bm25 is not None, "without another encoder, the sparse vector is BM25 of this package"
        return (resolved.config.terms or bm25.query_vector)(text, resolved.bm25.analyser)

    def _log_fewer_candidates(self, resolved: ResolvedCollection, top_k: int) -> None:
        """Log once if the server's limit leaves a hybrid search fewer candidates than it should have."""
        required = candidates(top_k, fusion=self._fusion, max_limit=None)
        offered = candidates(top_k, fusion=self._fusion, max_limit=resolved.limits.query)
        if self.mode == "hybrid" and offered < required and "fewer candidates" not in self._told:
            self._told.add("fewer candidates")
            logger.warning(
                "collection %r: max_query_limit is %d, so a hybrid search fuses the best %d points of each kind "
                "instead of %d: a point that is further down in both lists is not found",
                resolved.name,
                resolved.limits.query,
                offered,
                required,
            )


def _searching_with(model: "CareModel", config: StoreConfig) -> StoreConfig:
    return replace(
        config, contract=model.contract(), encode=model.encode_query, alpha=model.alpha, terms=model.query_terms
    )
