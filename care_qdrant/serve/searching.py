"""``POST /search`` and ``GET /collections``: the configured collections, behind the checks of `Retriever`."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import lru_cache, partial
from typing import TypeVar

from pydantic import ValidationError
from qdrant_client import QdrantClient, models

from care_qdrant.encoders import bm25
from care_qdrant.errors import CareError, InputError, Rejected
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.contracts import SparseContract
from care_qdrant.search.conditions import parse_filter
from care_qdrant.search.fusion import Fusion
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.serve.marks import mark
from care_qdrant.serve.pairs import Pairs, ServedPair, check_texts
from care_qdrant.serve.refusal import Refusal, invalid_body
from care_qdrant.serve.schemas import Collections, CollectionState, SearchAnswer, SearchHit, SearchRequest, Timing
from care_qdrant.serve.settings import ServeSettings
from care_qdrant.types import Hit, Vectors

T = TypeVar("T")
_RETRIEVERS = 64
"""Kept with their checked contracts; one for each collection, pair and way to search."""


class Searching:
    """Searches in threads, at most so many at a time; Qdrant is opened by the first one."""

    def __init__(self, settings: ServeSettings, pairs: Pairs) -> None:
        """Set up; nothing is opened, since the Qdrant may start after a service that it asks itself."""
        self._settings, self._pairs = settings, pairs
        self._limits = settings.limits
        self._threads = ThreadPoolExecutor(settings.limits.search_threads, thread_name_prefix="care-search")
        self._room = threading.BoundedSemaphore(settings.limits.searches)
        self._open = ExitStack()
        self._opening = threading.Lock()
        self._client: QdrantClient | None = None
        self._retriever = lru_cache(_RETRIEVERS)(self._make_retriever)

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Answer one search."""
        collection = self._configured(request.collection)
        check_texts([request.query], "query", self._limits)
        if request.top_k > self._limits.top_k:
            raise Refusal(400, "invalid_request", f"top_k is {request.top_k}; at most {self._limits.top_k}")
        pair = None if request.mode == "sparse" else self._pair(request.model)
        run = partial(self._search, request, collection, pair, _filter(request), time.perf_counter())
        return await self._in_thread(run)

    async def collections(self) -> Collections:
        """Return what each configured collection can be asked."""
        states = [self._in_thread(partial(self._state, name)) for name in self._settings.collections]
        return Collections(collections=await asyncio.gather(*states))

    def close(self) -> None:
        """Finish what runs, then let go of Qdrant."""
        self._threads.shutdown()
        self._open.close()

    def _search(
        self,
        request: SearchRequest,
        collection: str,
        pair: ServedPair | None,
        filter_: models.Filter | None,
        accepted: float,
    ) -> SearchAnswer:
        started = time.perf_counter()
        encoding = 0.0

        def encode(texts: Sequence[str]) -> Vectors:
            """Encode in a batch with other requests, and note the time."""
            nonlocal encoding
            assert pair is not None, "a search by words encodes nothing"
            began = time.perf_counter()
            try:
                return pair.query.encode_now(texts)
            finally:
                encoding += time.perf_counter() - began

        retriever = self._retriever(collection, pair, request.mode, request.fusion, request.alpha)
        [hits] = retriever.search([request.query], request.top_k, filter_, encode=encode)
        ended = time.perf_counter()
        seconds = {"wait": started - accepted, "encode": encoding, "search": ended - started - encoding}
        return SearchAnswer(
            collection=collection,
            model=None if pair is None else pair.name,
            fingerprint=None if pair is None else pair.fingerprint,
            mode=retriever.mode,
            hits=_marked(request.query, hits, request.marks),
            timing_ms=Timing(
                **{name: round(value * 1000, 3) for name, value in seconds.items()},
                total=round((ended - accepted) * 1000, 3),
            ),
        )

    def _state(self, name: str) -> CollectionState:
        try:
            contracts = Collection(self._qdrant(), name).resolve().schema.contracts.values()
        except CareError as error:
            return CollectionState(name=name, models=[], sparse=False, problem=str(error))
        made_by = {contract.fingerprint for contract in contracts}
        pairs = [f"{pair.name}@{pair.fingerprint[:12]}" for pair in self._pairs if pair.fingerprint in made_by]
        sparse = any(isinstance(each, SparseContract) and each.fingerprint == bm25.ANALYSER for each in contracts)
        return CollectionState(name=name, models=pairs, sparse=sparse)

    def _make_retriever(
        self, collection: str, pair: ServedPair | None, mode: Mode, fusion: Fusion, alpha: float | None
    ) -> Retriever:
        model = None if pair is None else pair.model
        return Retriever(self._qdrant(), collection, model, mode=mode, fusion=fusion, alpha=alpha)

    def _qdrant(self) -> QdrantClient:
        with self._opening:
            if self._client is None:
                if self._settings.open_qdrant is None:
                    raise InputError("this service was not given a Qdrant")
                try:
                    self._client = self._open.enter_context(self._settings.open_qdrant())
                except Rejected as error:
                    raise Refusal(503, "qdrant_failed", str(error)) from error
            return self._client

    def _configured(self, wanted: str | None) -> str:
        names = self._settings.collections
        if wanted is None and names:
            return names[0]
        if wanted in names:
            return wanted
        there = ", ".join(names) or "none; start the service with --collection"
        raise Refusal(404, "unknown_collection", f"collection {wanted!r} is not configured here (there: {there})")

    def _pair(self, wanted: str | None) -> ServedPair:
        return self._pairs.default if wanted is None else self._pairs.find(wanted)

    async def _in_thread(self, run: Callable[[], T]) -> T:
        if not self._room.acquire(blocking=False):
            raise Refusal(429, "queue_full", f"{self._limits.searches} searches are under way already; ask again later")
        future: Future[T] = self._threads.submit(run)
        future.add_done_callback(lambda _: self._room.release())
        return await asyncio.wrap_future(future)


def _filter(request: SearchRequest) -> models.Filter | None:
    """Return the filter that the conditions and the filter of Qdrant make together."""
    conditions = parse_filter(request.conditions)
    if request.filter is None:
        return conditions
    try:
        given = models.Filter.model_validate(request.filter)
    except ValidationError as error:
        raise invalid_body(error, where="filter") from error
    return given if conditions is None else models.Filter(must=[conditions, given])


def _marked(query: str, hits: Sequence[Hit], marks: bool) -> list[SearchHit]:
    texts = [part for hit in hits for part in (hit.text, hit.title)]
    spans = mark(query, texts) if marks else [[] for _ in texts]
    return [
        SearchHit(**asdict(hit) | {"metadata": dict(hit.metadata)}, marks=in_text, title_marks=in_title)
        for hit, in_text, in_title in zip(hits, spans[::2], spans[1::2], strict=True)
    ]
