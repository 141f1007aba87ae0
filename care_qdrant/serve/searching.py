"""The served collections, behind the checks of `Retriever`: search, good-match score, documents, overview."""

import asyncio
import logging
import math
import re
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from pydantic import ValidationError
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.contracts.layouts import guess_layout, read_hit
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import CareError, ContractError, InputError, Rejected, counted
from care_qdrant.qdrant.calls import DEADLINE
from care_qdrant.qdrant.collection import Collection, only_collection
from care_qdrant.search.conditions import Keys, notice, parse_filter
from care_qdrant.search.fallback import Fallback
from care_qdrant.search.good_match import GoodMatch, Match, fixed_questions, judge, known_good_match, measure_good_match
from care_qdrant.search.overview import Question, overview
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.search.script import script_note
from care_qdrant.serve import tracing
from care_qdrant.serve.labels import keep_label
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.models import ServedModel, ServedModels, check_texts
from care_qdrant.serve.refusal import Refusal, invalid_body
from care_qdrant.serve.schemas import (
    Collections,
    CollectionState,
    GoodMatchRequest,
    LabelAnswer,
    LabelRequest,
    SearchAnswer,
    SearchHit,
    SearchRequest,
    Timing,
    WholeDocument,
)
from care_qdrant.serve.settings import ServeSettings
from care_qdrant.types import Hit, Vectors

logger = logging.getLogger(__name__)

T = TypeVar("T")
_RETRIEVERS = 64
"""Retrievers that are kept with their checked model records; one for each collection, model and way to search."""
_GOOD_MATCH_SECONDS = 30.0
"""Longest time to measure a good-match score: a worker that ends waits for it."""
_GOOD_MATCH_PAUSE_SECONDS = 300
"""Pause after a measurement of good matches that failed: one costs some sixty searches."""
_LOOK_SECONDS = 30.0
"""Time after which a service without --collection may look again which collections there are."""
_LONGEST_NUMBER = 18
"""Digits of a document id that may stand for a number: all of these fit the integers of Qdrant."""
_EXAMPLES = 3
"""Example questions of a collection that the page offers."""
_LAYOUT_POINTS = 32
"""Points that show where a collection keeps the ids of its documents."""

MAX_TERMS = 64
"""Terms of a query that are marked."""
MAX_CHARACTERS = 5_000
"""Characters of a text in which terms are marked."""
_SEPARATORS = r"[\s-]?"


def mark(query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the spans of each text that are terms of the query: first character and end, in order, apart.

    A single Han character counts only where the query has no two beside each other: it would mark half of the text.
    """
    terms = list(dict.fromkeys(bm25.terms(query)))
    longer = [term for term in terms if len(term) > 1] or terms
    if not longer:
        return [[] for _ in texts]
    # The longest first: an alternation takes the first that fits. Ahead only, because pairs of characters overlap.
    patterns = sorted(map(_pattern, longer[:MAX_TERMS]), key=len, reverse=True)
    found = re.compile(f"(?=({'|'.join(patterns)}))")
    return [_spans(found, text[:MAX_CHARACTERS]) for text in texts]


def _pattern(term: str) -> str:
    """Return the pattern of a term in any of its spellings: IL-6 and IL6, 5 mg and 5mg; never inside a word."""
    letters = _SEPARATORS.join(map(re.escape, term))
    return rf"(?<![a-z0-9]){letters}(?![a-z0-9])" if term.isascii() else letters


def _spans(found: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    characters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        normal = unicodedata.normalize("NFKC", character).lower()
        characters.append(normal)
        places += [place] * len(normal)
    spans: list[tuple[int, int]] = []
    for match in found.finditer("".join(characters)):
        start, end = places[match.start(1)], places[match.end(1) - 1] + 1
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of one search in its thread."""

    mode: Mode
    hits: list[Hit]
    good_match: GoodMatch | None
    unfinished: str | None
    """A run that writes to the searched vectors, or was interrupted; None where there is none."""
    note: str | None
    """Reason why a condition lets nothing pass or rules nothing out, or that the texts are in another script."""
    unread: list[str]
    started: float
    ended: float


class Searching:
    """Searches in threads, at most so many at a time; Qdrant is opened by the first one."""

    def __init__(self, settings: ServeSettings, served: ServedModels, metrics: Metrics) -> None:
        """Set up; nothing is opened, since the Qdrant may start after a service that it asks itself."""
        self._settings, self._models, self._metrics = settings, served, metrics
        self._limits = settings.limits
        self._threads = ThreadPoolExecutor(settings.limits.search_threads, thread_name_prefix="care-search")
        self._room = threading.BoundedSemaphore(settings.limits.searches)
        self._open = ExitStack()
        self._opening = threading.Lock()
        self._client: QdrantClient | None = None
        self._opened_fallback: Fallback | None = None
        self._retriever = lru_cache(_RETRIEVERS)(self._make_retriever)
        self._found: tuple[str, ...] | None = None
        """Collections that were found, for a service without configured ones; None before the first look."""
        self._looked = -math.inf
        self.unserved: Mapping[str, str] = {}
        """Found collections that no model can search, with the reason."""
        self._good_matches: dict[tuple[str, str, Mode], tuple[float, asyncio.Task[GoodMatch | None]]] = {}

    async def search(self, request: SearchRequest, good_match_seconds: float = 0.0) -> SearchAnswer:
        """Answer one search; wait at most so long, and half of the time left, for a measurement of good matches."""
        collection = await self.served(request.collection)
        check_texts([request.query], "query", self._limits)
        if request.top_k * request.group_size > self._limits.top_k:
            groups = "" if request.group_size == 1 else f" of {request.group_size} hits each (group_size)"
            raise Refusal(400, "invalid_request", f"top_k is {request.top_k}{groups}; at most {self._limits.top_k}")
        served = None if request.mode == "sparse" else self._model(request.model)
        accepted = time.perf_counter()
        _filter(request)  # refused before anything is encoded
        with self._place():
            # Here, and not in a thread of the search: a request that is given up leaves the queue of the encoder.
            vectors = None if served is None else await served.encode([request.query], "query")
            encoded = time.perf_counter()
            run = partial(self._search, request, collection, served, vectors)
            found = await self._in_thread(run)
        match = Match(None if found.hits else False, None)
        if served is not None:
            good_match = found.good_match
            if good_match is None and _has_scale(request):
                good_match = await self._wait_for_good_match(collection, served, request.mode, good_match_seconds)
            match = judge(found.hits, good_match, found.unread)
        self._metrics.searched(collection, found.mode, is_good=match.is_good)
        waited, took = found.started - encoded, found.ended - found.started
        seconds = {"wait": waited, "encode": encoded - accepted, "search": took}
        return SearchAnswer(
            collection=collection,
            model=None if served is None else served.name,
            fingerprint=None if served is None else served.fingerprint,
            mode=found.mode,
            hits=_marked(request.query, found.hits, request.marks),
            good_match=match.is_good,
            good_match_score=match.good_match_score,
            unread=list(match.unread),
            unfinished=found.unfinished,
            note=found.note,
            timing_ms=Timing(
                **{name: round(value * 1000, 3) for name, value in seconds.items()},
                total=round((found.ended - accepted) * 1000, 3),
            ),
        )

    async def good_match_score(self, request: GoodMatchRequest) -> float | None:
        """Return the score from which on a best hit is a good match, by the collection's own questions.

        Where the collection does not keep it, it is measured: once for all requests that wait, with the deadline of
        none of them.
        """
        collection, served = await self.served(request.collection), self._model(request.model)
        retriever = await self._in_thread(lambda: self._retriever(collection, served, request.mode))
        good_match = await self._in_thread(lambda: self._known_good_match(retriever, collection, served, request.mode))
        if good_match is None:
            good_match = await asyncio.shield(self._measuring(collection, served, request.mode))
        return None if good_match is None else good_match.score

    async def _wait_for_good_match(
        self, collection: str, served: ServedModel, mode: Mode, seconds: float
    ) -> GoodMatch | None:
        """Let a good-match score be measured, and return it if that is done in time: a search does not depend on it."""
        task, deadline = self._measuring(collection, served, mode), DEADLINE.get()
        left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
        await asyncio.wait((task,), timeout=min(seconds, left / 2))
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    def _known_good_match(
        self, retriever: Retriever, collection: str, served: ServedModel, mode: Mode
    ) -> GoodMatch | None:
        """Return the good-match score that the collection keeps, or the one that this worker has measured."""
        if (kept := known_good_match(retriever)) is not None:
            return kept
        _, task = self._good_matches.get((collection, served.fingerprint, mode), (0.0, None))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        measured = task.result()
        return measured if measured is not None and measured.holds(retriever.schema.points) else None

    def _measuring(self, collection: str, served: ServedModel, mode: Mode) -> "asyncio.Task[GoodMatch | None]":
        """Return the task that measures good matches: the one that runs, or that failed a moment ago, or a new one."""
        key = (collection, served.fingerprint, mode)
        made, task = self._good_matches.get(key, (0.0, None))
        if task is None or (task.done() and time.monotonic() - made > _GOOD_MATCH_PAUSE_SECONDS):
            # In a context of its own: that of the request that comes first holds its deadline and its trace.
            task = asyncio.create_task(self._measure(collection, served, mode), context=Context())
            self._good_matches[key] = (time.monotonic(), task)
            task.add_done_callback(_note_failure)
        return task

    async def document(self, document_id: str, wanted: str | None) -> WholeDocument:
        """Return all chunks of a document."""
        collection = await self.served(wanted)
        with self._place():
            return await self._in_thread(partial(self._document, collection, document_id))

    async def label(self, request: LabelRequest) -> LabelAnswer:
        """Keep a judgement of a document that the collection has."""
        folder, collection = self._settings.labels, await self.served(request.collection)
        if folder is None:
            raise Refusal(404, "no_labels", "this service keeps no judgements; start it with --labels FOLDER")
        check_texts([request.query], "query", self._limits)
        await self.document(request.document_id, collection)
        keep = partial(
            keep_label, folder / collection, request.query, request.document_id, is_relevant=request.relevant
        )
        return LabelAnswer(questions=await self._in_thread(keep))

    async def names(self, *, is_new_look: bool = True) -> Sequence[str]:
        """Return the collections that are served: those that were configured, or all that a model can search.

        Args:
            is_new_look: Whether to find collections that were made after the last look, some time ago.
        """
        if self._settings.collections or self._settings.open_qdrant is None:
            return self._settings.collections
        is_old = time.monotonic() - self._looked > _LOOK_SECONDS
        if not self._found or (is_new_look and is_old):
            try:
                await self._in_thread(self._look)
            except InputError as error:
                raise Refusal(404, "unknown_collection", str(error)) from error
        return self._found or ()

    def _look(self) -> None:
        """Find the collections, and which of them a model can search; the only one is served whatever it is."""
        there = Collection(self._qdrant(), "").names()
        if len(there) < 2:
            self._found, self.unserved = (only_collection(self._qdrant(), "this service"),), {}
        else:
            unserved = {name: reason for name in there if (reason := self._why_not(name)) is not None}
            for name in unserved.keys() - self.unserved.keys():
                logger.warning("collection %r is not served: %s", name, unserved[name])
            self._found, self.unserved = tuple(name for name in there if name not in unserved), unserved
        self._looked = time.monotonic()

    def _why_not(self, name: str) -> str | None:
        """Return why no model can search a collection; None where one can."""
        reasons = []
        for served in self._models:
            try:
                self._retriever(name, served, "auto").resolved  # noqa: B018  # the check is what is asked for
            except (InputError, ContractError) as error:
                reasons.append(str(error))
            else:
                return None
        return reasons[0]

    async def collections(self, names: Sequence[str]) -> Collections:
        """Return what each of these collections can be asked."""
        with self._place():
            states = [self._in_thread(partial(self._state, name)) for name in names]
            labels = self._settings.labels is not None
            return Collections(collections=await asyncio.gather(*states), labels=labels)

    def close(self) -> None:
        """Finish what runs, then let go of Qdrant."""
        self._threads.shutdown()
        self._open.close()

    def _search(
        self,
        request: SearchRequest,
        collection: str,
        served: ServedModel | None,
        vectors: Vectors | None,
    ) -> _Found:
        started = time.perf_counter()
        retriever = self._retriever(collection, served, request.mode).fused_by(request.fusion, request.alpha)
        encode = None if vectors is None else lambda _: vectors
        keys = retriever.keys if request.conditions else None
        filter_ = _filter(request, keys)
        trace = tracing.current()
        part = trace.part("search", **{"db.collection.name": collection}) if trace is not None else nullcontext()
        with part, self._metrics.qdrant_seconds.labels(collection).time():
            [hits] = retriever.search(
                [request.query],
                request.top_k,
                filter_,
                score_threshold=request.score_threshold,
                group_by=request.group_by,
                group_size=request.group_size,
                encode=encode,
            )
        good_match = None
        if served is not None and _has_scale(request):
            good_match = self._known_good_match(retriever, collection, served, request.mode)
        notes = [script_note(request.query, hits)]
        if keys is not None:
            there = Collection(self._qdrant(), collection).resolve()
            notes.append(notice(there, request.conditions, keys, found=bool(hits)))
        note = "; ".join(filter(None, notes)) or None
        unread = [] if served is None else served.model.unread(request.query)
        return _Found(
            retriever.mode, hits, good_match, retriever.unfinished, note, unread, started, time.perf_counter()
        )

    def _state(self, name: str) -> CollectionState:
        if (reason := self.unserved.get(name)) is not None:
            return CollectionState(name=name, models=[], sparse=False, problem=reason)
        try:
            collection = Collection(self._qdrant(), name).resolve()
            contracts, holds = collection.schema.contracts.values(), overview(collection)
            made_by = {contract.fingerprint for contract in contracts}
            able = [f"{each.name}@{each.fingerprint[:12]}" for each in self._models if each.fingerprint in made_by]
            problem = None if able else self._why_not(name)
        except CareError as error:
            return CollectionState(name=name, models=[], sparse=False, problem=str(error))
        examples = self._settings.examples
        sparse = any(isinstance(each, SparseContract) and each.fingerprint == bm25.ANALYSER for each in contracts)
        return CollectionState(
            name=name,
            models=able,
            sparse=sparse,
            problem=problem,
            unfinished=collection.schema.unfinished,
            points=holds.points,
            questions=list(examples) or [question.text for question in holds.questions[:_EXAMPLES]],
            glosses=dict(examples),
            keys={key: list(values) for key, values in holds.keys.items()},
        )

    async def _measure(self, name: str, served: ServedModel, mode: Mode) -> GoodMatch | None:
        def draw() -> tuple[Retriever, list[Question]]:
            retriever = self._retriever(name, served, mode)
            return retriever, fixed_questions(retriever)

        retriever, questions = await self._in_thread(draw)
        texts = [question.text for question in questions]
        vectors = dict(zip(texts, await served.encode(texts, "query"), strict=True)) if texts else {}

        def encode(asked: Sequence[str]) -> Vectors:
            return np.stack([vectors[text] for text in asked])

        return await self._in_thread(lambda: measure_good_match(retriever, questions, encode, _GOOD_MATCH_SECONDS))

    def _document(self, name: str, document_id: str) -> WholeDocument:
        collection = Collection(self._qdrant(), name).resolve()
        paths = {path for record in collection.sample(_LAYOUT_POINTS) for path in _document_paths(record.payload or {})}
        values: list[str | int] = [document_id, *([int(document_id)] if _is_number(document_id) else [])]
        may_be: list[models.Condition] = [
            models.FieldCondition(key=path, match=models.MatchValue(value=value))
            for path in sorted(paths)
            for value in values
        ]
        # A point whose payload names no document is one by its own id.
        may_be += [models.HasIdCondition(has_id=[one]) for one in _point_ids(document_id)]
        # Every point passes a filter without conditions.
        pages = collection.scroll("reading a document", where=models.Filter(should=may_be), as_seen=True)
        records = [record for page in pages for record in page] if may_be else []
        hits = [read_hit(one) for one in records]
        chunks = sorted((hit for hit in hits if hit.document_id == document_id), key=lambda hit: hit.chunk)
        if not chunks:
            raise Refusal(404, "unknown_document", f"collection {name!r} has no document {document_id!r}")
        return WholeDocument(
            collection=name,
            document_id=document_id,
            title=chunks[0].title,
            chunks=[hit.text for hit in chunks],
            metadata=dict(chunks[0].metadata),
        )

    def _make_retriever(self, collection: str, served: ServedModel | None, mode: Mode) -> Retriever:
        model = None if served is None else served.model
        fallback = None if model is None else self._fallback()
        return Retriever(self._qdrant(), collection, model, mode=mode, fallback=fallback)

    def _fallback(self) -> Fallback | None:
        with self._opening:
            if self._opened_fallback is None and self._settings.open_fallback is not None:
                self._opened_fallback = self._settings.open_fallback()
            return self._opened_fallback

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

    async def served(self, wanted: str | None) -> str:
        """Return the name of the collection that a request means."""
        names = await self.names(is_new_look=False)
        if wanted is not None and wanted not in names:
            names = await self.names()
        if wanted is None and len(names) > 1 and not self._settings.collections:
            raise Refusal(404, "unknown_collection", f"several collections are served ({', '.join(names)}); name one")
        if names and wanted in (None, *names):
            return wanted or names[0]
        if wanted is not None and wanted in self.unserved:
            raise Refusal(404, "unknown_collection", f"collection {wanted!r} is not served: {self.unserved[wanted]}")
        reasons = "; ".join(f"{name!r} cannot be searched: {reason}" for name, reason in self.unserved.items())
        there = ", ".join(names) or reasons or "none; start the service with --collection"
        raise Refusal(404, "unknown_collection", f"collection {wanted!r} is not served here (there: {there})")

    def _model(self, wanted: str | None) -> ServedModel:
        return self._models.default if wanted is None else self._models.find(wanted)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count one more search, or refuse it."""
        if not self._room.acquire(blocking=False):
            raise Refusal(
                429,
                "queue_full",
                f"{counted(self._limits.searches, 'search', 'are')} under way already; ask again later",
            )
        try:
            yield
        finally:
            self._room.release()

    async def _in_thread(self, run: Callable[[], T]) -> T:
        """Return what a thread of the searches returns; it keeps the deadline of the request."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, run)


def _document_paths(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a point may name its document."""
    try:
        return guess_layout([payload]).document_paths
    except InputError:
        return ()


def _has_scale(request: SearchRequest) -> bool:
    """Return whether the scores of a search can be compared with a good-match score: it fuses as all do by default."""
    return request.fusion == "linear" and request.alpha is None


def _is_number(document_id: str) -> bool:
    return document_id.isascii() and document_id.isdecimal() and len(document_id) <= _LONGEST_NUMBER


def _point_ids(document_id: str) -> list[int | str]:
    """Return the id of a point that a document id may be: a number or a UUID."""
    if _is_number(document_id):
        return [int(document_id)]
    try:
        return [str(UUID(document_id))]
    except ValueError:
        return []


def _note_failure(task: "asyncio.Task[GoodMatch | None]") -> None:
    """Log why a good-match score was not measured; where nobody waits for it, nobody else would say so."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("which score is a good one was not measured (%s)", error)


def _filter(request: SearchRequest, keys: Keys | None = None) -> models.Filter | None:
    """Return the filter that the conditions and the filter of Qdrant make together."""
    conditions = parse_filter(request.conditions, keys)
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
        SearchHit(**hit.as_dict(), marks=in_text, title_marks=in_title)
        for hit, in_text, in_title in zip(hits, spans[::2], spans[1::2], strict=True)
    ]
