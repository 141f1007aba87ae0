"""Searches of the served collections, behind the checks of `Retriever`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import ValidationError
from qdrant_client import models

from care_qdrant.encoders.terms.analyser import Analyser
from care_qdrant.qdrant.filters import field_conditions, require_finite
from care_qdrant.search.conditions import Keys, notice, parse_filter
from care_qdrant.search.good_match import GoodMatch, Match, judge
from care_qdrant.search.retriever import Mode
from care_qdrant.search.script import script_note
from care_qdrant.serve import marks
from care_qdrant.serve.backend import Backend, View
from care_qdrant.serve.documents import find_chunks, read_document
from care_qdrant.serve.good_matches import GoodMatches
from care_qdrant.serve.labels import keep_label, kept_labels
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.models import ServedModel, ServedModels, check_texts
from care_qdrant.serve.record import Record
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.schemas import (
    GoodMatchRequest,
    LabelAnswer,
    LabelRequest,
    SearchAnswer,
    SearchHit,
    SearchRequest,
    Timing,
    WholeDocument,
)
from care_qdrant.types import Hit, Vectors


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one search in its thread."""

    name: str
    """The collection itself that was searched."""
    mode: Mode
    hits: list[SearchHit]
    best: list[Hit]
    """The best hit, for the check of good matches; empty without hits."""
    good_match: GoodMatch | None
    unfinished: str | None
    """A run that writes to the searched vectors, or was interrupted; None without such a run."""
    note: str | None
    """Reason why a condition lets nothing pass or rules nothing out, or that the texts are in another script."""
    unread: list[str]
    started: float
    ended: float


class Searching:
    """Answers the requests that search one collection, in the view that the catalogue gives."""

    def __init__(self, backend: Backend, served: ServedModels, metrics: Metrics) -> None:
        self._backend, self._models, self._metrics = backend, served, metrics
        self._settings, self._limits = backend.settings, backend.settings.limits
        self._good_matches = GoodMatches(backend)
        settings = backend.settings
        self._record = (
            None
            if settings.record is None
            else Record(settings.record, days=settings.record_days, redacted=settings.redacted)
        )

    async def search(self, request: SearchRequest, view: View, good_match_seconds: float = 0.0) -> SearchAnswer:
        """Answer one search; wait at most `good_match_seconds` for a good-match score."""
        check_texts([request.query], "query", self._limits)
        if request.top_k * request.group_size > self._limits.top_k:
            asked = "top_k" if request.group_size == 1 else "top_k times group_size"
            raise Refusal(400, "invalid_request", f"{asked}: expected a number of at most {self._limits.top_k}")
        if request.mode in ("dense", "sparse") and not _has_scale(request):
            reason = f"alpha and fusion have no effect in a {request.mode} search; leave them out"
            raise Refusal(400, "invalid_request", reason)
        named = None if request.mode == "sparse" else self._named(request.model)
        accepted = time.perf_counter()
        with self._backend.admitted():
            served = named if request.mode == "sparse" else named or await self._chosen(view)
            if request.conditions or request.filter is not None:  # refused before anything is encoded
                await self._backend.run(partial(_filter, request))
            # Here, not in a search thread: a cancelled request then leaves the encoder's queue.
            vectors = None if served is None else await served.encode([request.query], "query")
            encoded = time.perf_counter()
            outcome = await self._backend.run(partial(self._search, request, view, served, vectors))
        match = Match(None if outcome.hits else False, None)
        if served is not None:
            good_match = outcome.good_match
            if good_match is None and _has_scale(request):
                there = replace(view, collection=outcome.name)
                good_match = await self._good_matches.wait(there, served, request.mode, good_match_seconds)
            match = judge(outcome.best, good_match, outcome.unread)
        self._metrics.searched(view.collection, outcome.mode, is_good=match.is_good)
        waited, took = outcome.started - encoded, outcome.ended - outcome.started
        seconds = {"wait": waited, "encode": encoded - accepted, "search": took}
        return SearchAnswer(
            collection=view.collection,
            model=None if served is None else served.name,
            fingerprint=None if served is None else served.fingerprint,
            mode=outcome.mode,
            hits=outcome.hits,
            good_match=match.is_good,
            good_match_score=match.good_match_score,
            unread=list(match.unread),
            unfinished=outcome.unfinished,
            note=outcome.note,
            timing_ms=Timing(
                **{name: round(value * 1000, 3) for name, value in seconds.items()},
                total=round((outcome.ended - accepted) * 1000, 3),
            ),
        )

    async def good_match_score(self, request: GoodMatchRequest, view: View) -> float | None:
        """Return the score from which on a best hit is a good match; None for a collection too small to tell."""
        served = self._named(request.model) or await self._chosen(view)
        return await self._good_matches.score(view, served, request.mode)

    async def document(self, document_id: str, view: View) -> WholeDocument:
        """Return all chunks of a document."""

        def read() -> WholeDocument:
            return read_document(self._backend.collection(view).resolve(), document_id)

        with self._backend.admitted():
            return await self._backend.run(read)

    async def label(self, request: LabelRequest, view: View) -> LabelAnswer:
        """Store a judgement of a document in the collection."""
        record = self._record
        if record is None:
            raise Refusal(404, "no_labels", "this service keeps no judgements; start it with --record FOLDER")
        check_texts([request.query], "query", self._limits)

        def find() -> None:
            next(find_chunks(self._backend.collection(view).resolve(), request.document_id))

        with self._backend.admitted():
            await self._backend.run(find)
        query, folder = record.redact(request.query), record.folder / view.folder_name
        keep = partial(keep_label, folder, query, request.document_id, is_relevant=request.relevant)
        try:
            return LabelAnswer(questions=await self._backend.run(keep))
        except OSError as error:  # such as a full disk
            reason = f"the judgement could not be written to the folder of --record ({error.strerror}); send it again"
            raise Refusal(503, "labels_not_written", reason) from error

    def _search(
        self,
        request: SearchRequest,
        view: View,
        served: ServedModel | None,
        vectors: Vectors | None,
    ) -> _Outcome:
        started = time.perf_counter()
        retriever = self._backend.retriever(view, served, request.mode).fused_by(request.fusion, request.alpha)
        encode = None if vectors is None else lambda _: vectors
        keys = retriever.keys if request.conditions else None
        filter_ = _filter(request, keys)
        by_old_model: list[tuple[list[float], str]] = []
        with self._metrics.qdrant_seconds.labels(view.collection).time():
            [hits] = retriever.search(
                [request.query],
                request.top_k,
                filter_,
                score_threshold=request.score_threshold,
                group_by=request.group_by,
                group_size=request.group_size,
                encode=encode,
                on_fallback=lambda _query, vector, origin: by_old_model.append((vector, origin)),
            )
        good_match = None
        if served is not None and _has_scale(request):
            good_match = self._good_matches.known(view, retriever, served, request.mode)
        notes = [script_note(request.query, hits)]
        if keys is not None:
            there = self._backend.collection(view).resolve()
            notes.append(notice(there, request.conditions, keys, found=bool(hits)))
        note = "; ".join(filter(None, notes)) or None
        unread = [] if served is None else served.model.unread(request.query)
        ended = time.perf_counter()
        labels: Mapping[str, bool] = {}
        if (record := self._record) is not None:
            fingerprint = None if served is None else served.fingerprint
            ids = [hit.document_id for hit in hits]
            record.keep(view.folder_name, request.query, ids, fingerprint, *by_old_model[-1:])
            labels = kept_labels(record.folder / view.folder_name, record.redact(request.query))
        shown = _shown(request.query, hits, labels, retriever.analyser, marks.MAX_HITS if request.marks else 0)
        name, unfinished = retriever.resolved.name, retriever.unfinished
        return _Outcome(name, retriever.mode, shown, hits[:1], good_match, unfinished, note, unread, started, ended)

    def _named(self, name: str | None) -> ServedModel | None:
        """Return the model that a request names; of a service with one model, that one."""
        if name is None:
            return self._models.default if len(self._models) == 1 else None
        return self._models.find(name)

    async def _chosen(self, view: View) -> ServedModel:
        """Return the model that the collection names as active, or the first one that can search it."""
        return await self._backend.run(partial(self._backend.chosen_model, view, self._models))


def _has_scale(request: SearchRequest) -> bool:
    """Return whether the scores of a search can be compared with a good-match score: it uses the default fusion."""
    return request.fusion == "linear" and request.alpha is None


def _filter(request: SearchRequest, keys: Keys | None = None) -> models.Filter | None:
    """Return the filter that the conditions and the filter of Qdrant make together."""
    conditions = parse_filter(request.conditions, keys)
    if request.filter is None:
        return conditions
    try:
        given = models.Filter.model_validate(request.filter)
    except ValidationError as error:
        place = error.errors(include_url=False, include_input=False)[0]["loc"]
        clauses = ", ".join(models.Filter.model_fields)
        reason = (
            f"filter: {place[0]!r} is not written as Qdrant expects it"
            if place and place[0] in models.Filter.model_fields
            else f"filter: expected an object with {clauses}"
        )
        raise Refusal(400, "invalid_request", reason, param="filter") from error
    for written, read in _changed(request.filter, given.model_dump(mode="json", by_alias=True, exclude_unset=True)):
        reason = f"filter: {written!r} would count as {read!r}; write a number without quotes, a date as 2024-03-01"
        raise Refusal(400, "invalid_request", reason, param="filter")
    for key, condition in field_conditions(given):
        if condition.model_dump(exclude_none=True).keys() <= {"key"}:
            reason = f"filter: the condition on {key!r} says nothing of its values; add match, range or another one"
            raise Refusal(400, "invalid_request", reason, param="filter")
    require_finite(given)
    return given if conditions is None else models.Filter(must=[conditions, given])


def _changed(written: Any, read: Any) -> Iterator[tuple[Any, Any]]:
    """Yield values that pydantic turned into another type, such as true into 1: Qdrant refuses them."""
    if isinstance(written, dict):
        for key, value in written.items():
            yield from _changed(value, read[key])
    elif isinstance(written, list):
        for value, other in zip(written, read, strict=True):
            yield from _changed(value, other)
    elif any(isinstance(written, kind) != isinstance(read, kind) for kind in (str, bool)):
        yield written, read


def _shown(
    query: str, hits: Sequence[Hit], labels: Mapping[str, bool], analyser: Analyser, most: int
) -> list[SearchHit]:
    """Return the hits in the form of the answer, with terms marked in the first `most` of them."""
    texts = [part for hit in hits[:most] for part in (hit.text, hit.title)]
    spans = marks.mark(query, texts, analyser) + [[]] * (2 * len(hits) - len(texts))
    return [
        SearchHit(**hit.as_dict(), marks=in_text, title_marks=in_title, relevant=labels.get(hit.document_id))
        for hit, in_text, in_title in zip(hits, spans[::2], spans[1::2], strict=True)
    ]
