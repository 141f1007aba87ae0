"""Batches of single calls: the texts that arrive while the encoder runs are its next batch.

A small encoder is bound by reading its weights, so eight texts cost little more than one. No text waits for a batch to
fill: an idle encoder starts with the first text at once, and a thread that finds it idle runs it itself, without a
switch to another. Under load the batches grow by themselves.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from care_qdrant.errors import CareError, EncodingError, counted
from care_qdrant.forking import renew_in_child
from care_qdrant.types import Vectors

Vector = npt.NDArray[np.float32]
"""Shape (dim,), unit length."""

DEFAULT_MAX_BATCH = 32
_FORK_WAIT_SECONDS = 5.0


class MicroBatcher:
    """Encodes single texts for many threads and coroutines, in batches.

    A text that the encoder refuses fails alone, not with those that shared its batch. A future that is cancelled
    before its turn costs nothing. Equal texts in one batch are encoded once. A forked child starts with an empty queue
    and its own workers; a batcher that is garbage-collected ends its workers.
    """

    def __init__(
        self, encode: Callable[[list[str]], Vectors], *, max_batch: int = DEFAULT_MAX_BATCH, workers: int = 1
    ) -> None:
        """Set up; threads start with the first text that has to wait.

        Args:
            encode: Returns one row per text, ``(len(texts), dim)``. It must not refer to this object, which would then
                never be collected.
            max_batch: Most texts of one call.
            workers: Number of batches that may run side by side: one per core that is to encode queries.
        """
        self._line = _Line(encode, max_batch, workers)
        self._finalizer = weakref.finalize(self, self._line.close)
        _live.add(self)
        renew_in_child(self, MicroBatcher._start_afresh)

    def encode(self, text: str) -> Vector:
        """Return the vector of a text, computed in this thread when the encoder is idle.

        Raises:
            CareError: The batcher was closed.
        """
        line = self._line
        if not line.start_at_once():
            return line.put(text).result()
        try:
            vector: Vector = line.encode([text])[0]
        finally:
            line.done()
        return vector

    def submit(self, text: str) -> "Future[Vector]":
        """Return the future vector of a text; ``asyncio.wrap_future`` makes it awaitable.

        Raises:
            CareError: The batcher was closed.
        """
        return self._line.put(text)

    def close(self) -> None:
        """Answer the submitted texts, then end the worker threads; a second call has no effect."""
        self._finalizer()

    def _start_afresh(self) -> None:
        """Forget the line, whose locks and futures belong to the process that this one was forked from."""
        self._finalizer.detach()
        self._line = self._line.successor()
        self._finalizer = weakref.finalize(self, self._line.close)


@dataclass(eq=False)
class _Request:
    text: str
    future: "Future[Vector]" = field(default_factory=Future)


class _Line:
    """The texts that wait, and the workers that serve them. Workers hold this object and not the batcher."""

    def __init__(self, encode: Callable[[list[str]], Vectors], max_batch: int, workers: int) -> None:
        self.encode, self.max_batch, self.workers = encode, max_batch, workers
        self.condition = threading.Condition()
        self.running = 0
        """Batches that run now."""
        self._waiting: deque[_Request] = deque()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def successor(self) -> "_Line":
        """Return a fresh line for the same encoder, closed if this one is."""
        line = _Line(self.encode, self.max_batch, self.workers)
        line._closed = self._closed
        return line

    def start_at_once(self) -> bool:
        """Return whether the caller may encode now; it must then call `done` afterwards."""
        with self.condition:
            self._check_open()
            idle = not self._waiting and self.running < self.workers
            self.running += idle
            return idle

    def put(self, text: str) -> "Future[Vector]":
        request = _Request(text)
        with self.condition:
            self._check_open()
            for number in range(0 if self._threads else self.workers):
                name = f"care-encoder-{number}"
                self._threads.append(threading.Thread(target=_work, args=(self,), name=name, daemon=True))
                self._threads[-1].start()
            self._waiting.append(request)
            self.condition.notify_all()
        return request.future

    def take(self) -> list[_Request]:
        """Wait for the next batch; empty when the line is closed and every text was served.

        A worker takes its share of the waiting texts and leaves the rest to the other workers. If it took them all, it
        would be busy for long, while the others run new texts singly, and its last texts would wait longest.
        """
        with self.condition:
            self.condition.wait_for(lambda: self.running < self.workers if self._waiting else self._closed)
            share = -(-len(self._waiting) // self.workers)
            batch = [self._waiting.popleft() for _ in range(min(share, self.max_batch))]
            self.running += bool(batch)
            return batch

    def done(self) -> None:
        with self.condition:
            self.running -= 1
            self.condition.notify_all()

    def close(self) -> None:
        with self.condition:
            self._closed = True
            self.condition.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise CareError("this encoder was closed; make a new one")


def _work(line: _Line) -> None:
    while batch := line.take():
        try:
            _serve(line.encode, batch)
        finally:
            del batch
            line.done()


def _serve(encode: Callable[[list[str]], Vectors], batch: list[_Request]) -> None:
    alive = [request for request in batch if request.future.set_running_or_notify_cancel()]
    texts = list(dict.fromkeys(request.text for request in alive))
    answers = dict(zip(texts, _encode_apart(encode, texts), strict=True))
    for request in alive:
        answer = answers[request.text]
        if isinstance(answer, BaseException):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)


def _encode_apart(encode: Callable[[list[str]], Vectors], texts: list[str]) -> list[Vector | BaseException]:
    """Return the vector of each text, or its own error: a batch that fails is halved until one text is left."""
    if not texts:
        return []
    try:
        rows = list(encode(texts))
        if len(rows) != len(texts):
            raise EncodingError(f"the encoder gave {counted(len(rows), 'row')} for {counted(len(texts), 'text')}")
        return rows
    except BaseException as error:
        if len(texts) == 1:
            return [error]
    middle = len(texts) // 2
    return _encode_apart(encode, texts[:middle]) + _encode_apart(encode, texts[middle:])


# A fork copies locks as they are, and no threads. So no batch may run at the moment of the fork (nor hold a lock of
# onnxruntime), and the child starts afresh.
_live: "weakref.WeakSet[MicroBatcher]" = weakref.WeakSet()
_held: list[_Line] = []


def _before_fork() -> None:
    for batcher in list(_live):
        line = batcher._line
        line.condition.acquire()
        line.condition.wait_for(lambda line=line: line.running == 0, timeout=_FORK_WAIT_SECONDS)  # type: ignore[misc]
        _held.append(line)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().condition.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_held.clear)
