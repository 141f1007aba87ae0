"""The Qdrant of a service, and the threads that ask it: opened by the first search, since it may start later."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TypeVar

from qdrant_client import QdrantClient

from care_qdrant.errors import InputError, Rejected, counted
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.conditions import MandatoryConditions
from care_qdrant.search.fallback import Fallback
from care_qdrant.search.retriever import SEARCH_POLICY, Mode, Retriever
from care_qdrant.serve.models import ServedModel, ServedModels
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.settings import ServeSettings

T = TypeVar("T")
_FOLDER_NAME = re.compile(r"(?!\.{1,2}$)[^/\0]+")
"""An alias may have another name, such as ``..`` or the path of another view's folder."""
_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class View:
    """A collection as one key may read it. Points are reached through a view alone, so that no path can forget it."""

    collection: str
    mandatory: MandatoryConditions | None
    """Conditions that every reading gets; None for all points."""

    @property
    def folder_name(self) -> str:
        """Folder of its searches and judgements below that of the service; keys with the same conditions share one."""
        is_folder_name = _FOLDER_NAME.fullmatch(self.collection) and len(self.collection.encode()) <= _NAME_BYTES
        name = self.collection if is_folder_name else _readable(self.collection)
        return name if self.mandatory is None else f"{name}/{_readable(' '.join(self.mandatory.written))}"


def _readable(text: str) -> str:
    """Return the name of a folder for this text alone, in readable letters and a hash."""
    return "-".join((re.sub(r"[^\w=-]", "_", text)[:60], sha256(text.encode()).hexdigest()[:12]))


_RETRIEVERS = 256
"""Retrievers that are kept with their checked model records; one for each view, model and way to search."""


class Backend:
    """Runs calls to Qdrant in threads, and limits how many searches run at a time."""

    def __init__(self, settings: ServeSettings) -> None:
        """Set up; Qdrant is opened later, since a Qdrant that calls this service may start after it."""
        self.settings = settings
        self._threads = ThreadPoolExecutor(settings.limits.search_threads, thread_name_prefix="care-search")
        self._room = threading.BoundedSemaphore(settings.limits.searches)
        self._opener, self._open = ThreadPoolExecutor(1, thread_name_prefix="care-opener"), ExitStack()
        self._opening = threading.Lock()
        self._client: Future[QdrantClient] | None = None
        self._opened_fallback: Fallback | None = None
        self.retriever = lru_cache(_RETRIEVERS)(self._make_retriever)
        """Returns the retriever of a view, a model and a way to search; call it in a thread."""
        self._follower = lru_cache(_RETRIEVERS)(self._make_follower)

    def _qdrant(self) -> QdrantClient:
        """Return the open Qdrant; call it in a thread."""
        with self._opening:
            # One attempt at a time, for all that wait: each one takes seconds where Qdrant does not answer.
            if self._client is None or (self._client.done() and self._client.exception() is not None):
                self._client = self._opener.submit(self._opened)
            opening = self._client
        return opening.result()

    def _opened(self) -> QdrantClient:
        if self.settings.open_qdrant is None:
            raise InputError("this service was not given a Qdrant")
        try:
            return self._open.enter_context(self.settings.open_qdrant())
        except Rejected as error:
            raise Refusal(503, "qdrant_failed", str(error)) from error

    def collection(self, view: View) -> Collection:
        """Return a collection, read with the patience of a search; call it in a thread."""
        return Collection(self._qdrant(), view.collection, SEARCH_POLICY, mandatory=view.mandatory)

    def names(self) -> list[str]:
        """Return the names of all collections; call it in a thread."""
        return Collection(self._qdrant(), "", SEARCH_POLICY).names()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count one more search while the block runs, or refuse it."""
        if not self._room.acquire(blocking=False):
            raise Refusal(
                429,
                "queue_full",
                f"{counted(self.settings.limits.searches, 'search', 'are')} under way already; ask again later",
            )
        try:
            yield
        finally:
            self._room.release()

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in a search thread and return its result; the request id is passed on to Qdrant."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, call)

    def close(self) -> None:
        """Finish the running calls, then close the connection to Qdrant."""
        self._threads.shutdown()
        self._opener.shutdown()
        self._open.close()

    def _make_retriever(self, view: View, served: ServedModel | None, mode: Mode) -> Retriever:
        model = None if served is None else served.model
        # Which queries it takes depends on those of all clients, and on a sample of all points.
        fallback = None if model is None or view.mandatory is not None else self._fallback()
        return self.new_retriever(view, model, mode, fallback=fallback)

    def chosen_model(self, view: View, served: ServedModels) -> ServedModel:
        """Return the model of a request that names none, by the checks of a search; call it in a thread."""
        fingerprint = self._follower(view, served).resolved.config.expected
        return next(each for each in served if each.fingerprint == fingerprint)

    def _make_follower(self, view: View, served: ServedModels) -> Retriever:
        first, *others = (each.model for each in served)
        return self.new_retriever(view, first, "dense", others=others)

    def new_retriever(
        self,
        view: View,
        model: CareModel | None,
        mode: Mode,
        *,
        fallback: Fallback | None = None,
        others: Sequence[CareModel] = (),
    ) -> Retriever:
        """Return a retriever that has checked nothing yet; call it in a thread."""
        return Retriever(
            self._qdrant(),
            view.collection,
            model,
            mode=mode,
            fallback=fallback,
            other_models=others,
            mandatory=view.mandatory,
        )

    def _fallback(self) -> Fallback | None:
        with self._opening:
            if self._opened_fallback is None and self.settings.open_fallback is not None:
                self._opened_fallback = self.settings.open_fallback()
            return self._opened_fallback
