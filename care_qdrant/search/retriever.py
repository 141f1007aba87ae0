"""Queries in, hits out: the online half. It reads the query encoder and never the document encoder."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qdrant_client import QdrantClient, models

from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError
from care_qdrant.search.fusion import DEFAULT_ALPHA, Fusion, fused_request
from care_qdrant.search.hits import best_of_each_document, read_hit
from care_qdrant.store.attached import read_text_path
from care_qdrant.store.connection import is_embedded
from care_qdrant.store.contracts import (
    SparseContract,
    check_contract,
    check_sparse_contract,
    read_contracts,
    require_collection,
)
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.types import Hit

if TYPE_CHECKING:
    from care_qdrant.model import CareModel

Mode = Literal["dense", "sparse", "hybrid"]
Question = list[models.Prefetch]
"""One query as Qdrant sees it: a search by each kind of vector that it has."""

BATCH_QUERIES = 64
"""Queries of one request; also the largest batch of the query encoder."""

_POLICY = RetryPolicy(attempts=3, base_seconds=0.2, cap_seconds=2.0)
"""Somebody waits for the answer: less patient than ingestion."""

CHECK_SECONDS = 30.0
"""How long a check of the contract holds. An alias may be switched to vectors of another model at any time."""

_WIDER = (1, 4, 16, 64)
"""When chunks of few documents crowd the answer, look at this many times as many points."""


@dataclass(frozen=True, slots=True)
class _Names:
    """The vectors that are searched; None for one that is not."""

    dense: str | None
    sparse: str | None
    text_field: str | None
    """Where attach read the texts; None where nothing was attached."""
    checked_at: float
    """By the monotonic clock, in seconds."""


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
        mode: Mode = "dense",
        vector_name: str | None = None,
        sparse_vector_name: str | None = None,
        fusion: Fusion = "linear",
        alpha: float = DEFAULT_ALPHA,
        params: models.SearchParams | None = None,
        unique_documents: bool = True,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """Set up a search; nothing is read before the first one.

        Args:
            client: An open Qdrant.
            collection: Name or alias.
            model: The pair whose query encoder is used; only a sparse search does without.
            mode: By vectors of the model, by BM25, or by both.
            vector_name: Of the dense vector; None takes the one that this model made.
            sparse_vector_name: Of the BM25 vector; None takes the one that is there.
            fusion: How a hybrid search puts the two lists together (`care_qdrant.search.fusion`).
            alpha: Share of the dense list in the linear fusion, from 0 to 1.
            params: Of Qdrant for the dense vector: exact, hnsw_ef, quantization.
            unique_documents: Give each document once, by its best chunk.
            check_seconds: How long a check of the contract holds; it costs two short requests.

        Raises:
            InputError: the arguments do not fit together.
        """
        if mode != "sparse" and model is None:
            raise InputError(f"a {mode} search needs a model; only a sparse one does without")
        if not 0 <= alpha <= 1:
            raise InputError(f"alpha is {alpha}; it is the share of the dense list, from 0 to 1")
        self._client, self._collection = client, collection
        self._link = Collection(client, collection, _POLICY)
        self._model = model if mode != "sparse" else None
        self._is_lexical = mode != "dense"
        self._vector_name, self._sparse_vector_name = vector_name, sparse_vector_name
        self._fusion, self._alpha = fusion, alpha
        self._params = None if is_embedded(client) else params
        self._unique_documents = unique_documents
        self._check_seconds = check_seconds
        self._checked: _Names | None = None

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 10,
        filter: models.Filter | None = None,  # noqa: A002  # the word of Qdrant and of LlamaIndex
    ) -> list[list[Hit]]:
        """Give the hits of each query, in order, best first; a blank query has none.

        Raises:
            InputError: the collection or the vector is not there.
            ContractError: another model made the vectors, or another analyser the terms.
            QdrantError: Qdrant refused, or cannot be reached.
        """
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; at least one hit must be asked for")
        names = self._names()
        asked = [number for number, query in enumerate(queries) if query.strip()]
        answers: list[list[Hit]] = [[] for _ in queries]
        for start in range(0, len(asked), BATCH_QUERIES):
            numbers = asked[start : start + BATCH_QUERIES]
            questions = self._questions(names, [queries[number] for number in numbers], filter)
            for number, hits in zip(numbers, self._answers(questions, top_k, names.text_field), strict=True):
                answers[number] = hits
        return answers

    def _names(self) -> _Names:
        if self._checked is None or time.monotonic() - self._checked.checked_at >= self._check_seconds:
            self._checked = self._link.call("reading the contract", self._check)
        return self._checked

    def _check(self) -> _Names:
        """Name the vectors to search, after checking that model and analyser are those that made them."""
        now = time.monotonic()
        require_collection(self._client, self._collection)
        contracts = read_contracts(self._client, self._collection)
        dense = sparse = None
        if self._model is not None:
            expected = self._model.contract()
            made_by_model = (name for name, found in contracts.items() if found.fingerprint == expected.fingerprint)
            dense = self._vector_name if self._vector_name is not None else next(made_by_model, expected.model)
            check_contract(self._client, self._collection, dense, expected)
        if self._is_lexical:
            lexical = (name for name, found in contracts.items() if isinstance(found, SparseContract))
            sparse = self._sparse_vector_name or next(lexical, bm25.VECTOR_NAME)
            check_sparse_contract(self._client, self._collection, sparse, bm25.ANALYSER)
        return _Names(dense, sparse, None if dense is None else read_text_path(self._link, dense), checked_at=now)

    def _questions(self, names: _Names, queries: Sequence[str], filter_: models.Filter | None) -> list[Question]:
        questions: list[Question] = [[] for _ in queries]
        if self._model is not None:
            for question, vector in zip(questions, self._model.encode_query(queries), strict=True):
                query = vector.tolist()
                question.append(models.Prefetch(query=query, using=names.dense, filter=filter_, params=self._params))
        if names.sparse is not None:
            for question, text in zip(questions, queries, strict=True):
                terms = bm25.query_vector(text)
                if terms.indices:
                    question.append(models.Prefetch(query=terms, using=names.sparse, filter=filter_))
        return questions

    def _answers(self, questions: Sequence[Question], top_k: int, text_field: str | None) -> list[list[Hit]]:
        """Ask, and ask again for more points where chunks of few documents crowd the answer."""
        answers: list[list[Hit]] = [[] for _ in questions]
        numbers = [number for number, question in enumerate(questions) if question]
        for limit in (top_k * times for times in _WIDER):
            unfinished = []
            for number, points in zip(numbers, self._ask([questions[n] for n in numbers], limit), strict=True):
                hits = [read_hit(point, text_field) for point in points]
                answers[number] = best_of_each_document(hits)[:top_k] if self._unique_documents else hits
                if len(points) == limit and len(answers[number]) < top_k:
                    unfinished.append(number)
            if not (numbers := unfinished):
                break
        return answers

    def _ask(self, questions: Sequence[Question], limit: int) -> list[list[models.ScoredPoint]]:
        if not questions:
            return []
        requests = [self._request(question, limit) for question in questions]
        responses = self._link.call(
            f"searching for {len(requests)} queries",
            lambda: self._client.query_batch_points(self._collection, requests),
        )
        return [response.points for response in responses]

    def _request(self, question: Question, limit: int) -> models.QueryRequest:
        if len(question) == 2:
            dense, sparse = question
            return fused_request(dense, sparse, fusion=self._fusion, alpha=self._alpha, limit=limit)
        [leaf] = question
        return models.QueryRequest(
            query=leaf.query, using=leaf.using, filter=leaf.filter, params=leaf.params, limit=limit, with_payload=True
        )
