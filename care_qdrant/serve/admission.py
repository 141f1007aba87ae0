"""A bounded queue in front of each encoder: it encodes what it accepts, in slices, so that large requests share."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from care_qdrant.encoders import Encoder
from care_qdrant.encoders.microbatch import MicroBatcher
from care_qdrant.errors import EncodingError, counted
from care_qdrant.serve import tracing
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.refusal import Refusal
from care_qdrant.types import Vectors

Side = Literal["query", "document"]

SLICE_TEXTS = 32
"""Texts of a request that are with the encoder at one time; those of other requests go in between."""
_DOCUMENT_NICENESS = 10


class AdmissionQueue:
    """Accepts texts for one encoder while there is room."""

    def __init__(
        self,
        side: Side,
        encode_slice: Callable[[Sequence[str]], Awaitable[Vectors]],
        *,
        capacity: int,
        metrics: Metrics,
    ) -> None:
        self._side, self._encode_slice, self._capacity = side, encode_slice, capacity
        self._gauge = metrics.waiting.labels(side)
        self._waiting = 0

    async def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode texts: (len(texts), dim) float32, in order."""
        if self._waiting + len(texts) > self._capacity:
            raise Refusal(
                429,
                "queue_full",
                f"{counted(self._waiting, 'text', 'wait')} for the {self._side} encoder, and {len(texts)} more would "
                f"pass the limit of {self._capacity}; ask again later, or start more workers",
            )
        self._count(len(texts))
        try:
            starts = range(0, len(texts), SLICE_TEXTS)
            return np.concatenate([await self._encode_slice(texts[at : at + SLICE_TEXTS]) for at in starts])
        finally:
            self._count(-len(texts))

    def _count(self, texts: int) -> None:
        self._waiting += texts
        self._gauge.inc(texts)


class QuerySide:
    """The query encoder of one model, micro-batched over all requests of this process."""

    def __init__(self, name: str, encoder: Encoder, *, capacity: int, metrics: Metrics) -> None:
        self._run = _Run(encoder, "query", name, metrics)
        self._batcher = MicroBatcher(self._run, max_batch=SLICE_TEXTS)
        self.queue = AdmissionQueue("query", self._encode_slice, capacity=capacity, metrics=metrics)

    async def _encode_slice(self, texts: Sequence[str]) -> Vectors:
        trace, moments, run = tracing.current(), tracing.Moments(), self._run
        submitted = [self._batcher.submit(text) for text in texts]
        if trace is not None:  # called in the thread of the encoder, before its next run
            submitted[-1].add_done_callback(lambda _: moments.ran(run.began))
        futures = [asyncio.wrap_future(future) for future in submitted]
        try:
            rows = np.stack(await asyncio.gather(*futures))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        if trace is not None:
            moments.record(trace, "query", len(texts))
        return rows

    def close(self) -> None:
        """Answer what was accepted, then end the thread."""
        self._batcher.close()


class DocumentSide:
    """The document encoder of one model, in a thread of its own that gives way to queries."""

    def __init__(self, name: str, load: Callable[[], Encoder], *, capacity: int, metrics: Metrics) -> None:
        """Set up the side; `load` reads the weights."""
        self._name, self._load, self._metrics = name, load, metrics
        self._run: _Run | None = None
        self.ready = False
        """Whether the weights are loaded and were checked."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="care-documents", initializer=_give_way)
        self.queue = AdmissionQueue("document", self._encode_slice, capacity=capacity, metrics=metrics)

    async def load(self) -> None:
        """Read the weights; queries are served meanwhile."""
        encoder = await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        self._run = _Run(encoder, "document", self._name, self._metrics)

    async def _encode_slice(self, texts: Sequence[str]) -> Vectors:
        if self._run is None:
            raise Refusal(503, "not_ready", f"the document encoder of {self._name} is still loading; ask again later")
        run, moments = self._run, tracing.Moments()

        def encode() -> Vectors:
            vectors = run(list(texts))
            moments.ran(run.began)
            return vectors

        vectors = await asyncio.get_running_loop().run_in_executor(self._thread, encode)
        if (trace := tracing.current()) is not None:
            moments.record(trace, "document", len(texts))
        return vectors

    def close(self) -> None:
        """Finish the running batch, then end the thread."""
        self._thread.shutdown(cancel_futures=True)


class _Run:
    """Runs an encoder, checks what it gives, and counts."""

    def __init__(self, encoder: Encoder, side: Side, name: str, metrics: Metrics) -> None:
        self._encoder, self._what = encoder, f"the {side} encoder of {name}"
        self._texts, self._batch = metrics.texts.labels(name, side), metrics.batch.labels(side)
        self._seconds = metrics.encode_seconds.labels(side)
        self.began = 0
        """`time.time_ns()` at which the last run began."""

    def __call__(self, texts: list[str]) -> Vectors:
        self.began, started = time.time_ns(), time.perf_counter()
        vectors = self._encoder.encode(texts)
        if vectors.shape != (len(texts), self._encoder.dim) or not np.isfinite(vectors).all():
            raise EncodingError(
                f"{self._what} gave vectors of shape {vectors.shape}, {np.isfinite(vectors).all(axis=-1).sum()} of "
                f"them finite; expected {(len(texts), self._encoder.dim)}, all finite. Check the model with: care "
                "model verify"
            )
        self._seconds.observe(time.perf_counter() - started)
        self._batch.observe(len(texts))
        self._texts.inc(len(texts))
        return vectors


def _give_way() -> None:
    """Lower the priority of this thread, and of those that it starts: a query never waits for a document's core."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _DOCUMENT_NICENESS)
    except (AttributeError, OSError):  # only Linux has a priority for each thread
        return
