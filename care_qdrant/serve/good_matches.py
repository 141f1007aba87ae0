"""Good-match scores of the served collections: measured once for all requests, without delaying a search."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextvars import Context
from dataclasses import replace

import numpy as np

from care_qdrant.qdrant.measurements import holds
from care_qdrant.search.good_match import GoodMatch, fixed_questions, known_good_match, measure_good_match
from care_qdrant.search.overview import Question
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.serve.backend import Backend, View
from care_qdrant.serve.models import ServedModel
from care_qdrant.types import Vectors

logger = logging.getLogger(__name__)

_MEASURING_SECONDS = 30.0
"""Longest time to measure a good-match score: a worker that ends waits for it."""
_PAUSE_SECONDS = 300
"""Pause after a measurement that failed: one costs some sixty searches."""


class GoodMatches:
    """Measures the good-match scores of one worker, and keeps the results."""

    def __init__(self, backend: Backend) -> None:
        """Set up; the first request that needs a score has it measured."""
        self._backend = backend
        self._measurements: dict[tuple[View, str, Mode], tuple[float, asyncio.Task[GoodMatch | None]]] = {}
        """Measurements by view of the collection itself (an alias may move), fingerprint and mode."""

    def known(self, view: View, retriever: Retriever, served: ServedModel, mode: Mode) -> GoodMatch | None:
        """Return the score that the collection keeps, or the one that this worker has measured; None for neither."""
        if (kept := known_good_match(retriever)) is not None:
            return kept
        there = replace(view, collection=retriever.resolved.name)
        _, task = self._measurements.get((there, served.fingerprint, mode), (0.0, None))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        measured = task.result()
        return measured if measured is not None and holds(measured.points, retriever.schema.points) else None

    async def score(self, view: View, served: ServedModel, mode: Mode) -> float | None:
        """Return the score from which on a best hit is a good match, by the collection's own questions.

        If the collection does not hold it, it is measured: once for all waiting requests, and to the end even if their
        clients disconnect.
        """

        def look() -> tuple[View, GoodMatch | None]:
            retriever = self._backend.retriever(view, served, mode)
            return replace(view, collection=retriever.resolved.name), self.known(view, retriever, served, mode)

        there, good_match = await self._backend.run(look)
        if good_match is None:
            good_match = await asyncio.shield(self._measuring(there, served, mode))
        return None if good_match is None else good_match.score

    async def wait(self, view: View, served: ServedModel, mode: Mode, seconds: float) -> GoodMatch | None:
        """Have the score of a view, of no alias, measured; return it if it is ready within `seconds`, else None."""
        task = self._measuring(view, served, mode)
        await asyncio.wait((task,), timeout=seconds)
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    def _measuring(self, view: View, served: ServedModel, mode: Mode) -> "asyncio.Task[GoodMatch | None]":
        """Return the task that measures a score: the running or recent one, or a new one."""
        key = (view, served.fingerprint, mode)
        made, task = self._measurements.get(key, (0.0, None))
        if task is None or (task.done() and time.monotonic() - made > _PAUSE_SECONDS):
            # In its own context: the context of the first request holds the id of that request.
            task = asyncio.create_task(self._measure(view, served, mode), context=Context())
            self._measurements[key] = (time.monotonic(), task)
            task.add_done_callback(_log_failure)
        return task

    async def _measure(self, view: View, served: ServedModel, mode: Mode) -> GoodMatch | None:
        def draw() -> tuple[Retriever, list[Question]]:
            retriever = self._backend.retriever(view, served, mode)
            return retriever, fixed_questions(retriever)

        retriever, questions = await self._backend.run(draw)
        texts = [question.text for question in questions]
        vectors = dict(zip(texts, await served.encode(texts, "query"), strict=True)) if texts else {}

        def encode(asked: Sequence[str]) -> Vectors:
            return np.stack([vectors[text] for text in asked])

        return await self._backend.run(lambda: measure_good_match(retriever, questions, encode, _MEASURING_SECONDS))


def _log_failure(task: "asyncio.Task[GoodMatch | None]") -> None:
    """Log why a score was not measured, since no request may be waiting for it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("the good-match score was not measured (%s)", error)
