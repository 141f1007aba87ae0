"""A bounded queue in front of each encoder: it encodes what it accepts, in slices, so that large requests share."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import numpy as np

from care_qdrant.encoders import Encoder
from care_qdrant.encoders.microbatch import MicroBatcher
from care_qdrant.errors import EncodingError, counted
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.refusal import Refusal
from care_qdrant.types import Vectors

Side = Literal["query", "document"]

SLICE_TEXTS = 32
"""Texts of a request that are encoded at a time; slices of other requests are encoded in between."""
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
        with self.admitted(len(texts)):
            starts = range(0, len(texts), SLICE_TEXTS)
            return np.concatenate([await self._encode_slice(texts[at : at + SLICE_TEXTS]) for at in starts])

    @contextmanager
    def admitted(self, texts: int) -> Iterator[None]:
        """Count texts as waiting while the block runs, or refuse them."""
        if self._waiting + texts > self._capacity:
            raise Refusal(
                429,
                "queue_full",
                f"at most {counted(self._capacity, 'text', 'wait')} for the {self._side} encoder, and there is no room "
                f"for {texts} more; ask again later, or start more workers",
            )
        self._count(texts)
        try:
            yield
        finally:
            self._count(-texts)

    def _count(self, texts: int) -> None:
        self._waiting += texts
        self._gauge.inc(texts)


class QuerySide:
    """The query encoder of one model, micro-batched over all requests of this process."""

    def __init__(self, name: str, encoder: Encoder, *, capacity: int, metrics: Metrics) -> None:
        self._batcher = MicroBatcher(_Run(encoder, "query", name, metrics), max_batch=SLICE_TEXTS)
        self.queue = AdmissionQueue("query", self._encode_slice, capacity=capacity, metrics=metrics)

    async def _encode_slice(self, texts: Sequence[str]) -> Vectors:
        futures = [asyncio.wrap_future(self._batcher.submit(text)) for text in texts]
        try:
            return np.stack(await asyncio.gather(*futures))
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def close(self) -> None:
        """Encode the accepted texts, then end the thread."""
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
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, list(texts))

    def close(self) -> None:
        """Finish the running batch, then end the thread."""
        self._thread.shutdown(cancel_futures=True)


class _Run:
    """Runs an encoder, checks what it gives, and counts."""

    def __init__(self, encoder: Encoder, side: Side, name: str, metrics: Metrics) -> None:
        self._encoder, self._what = encoder, f"the {side} encoder of {name}"
        self._texts, self._batch = metrics.texts.labels(name, side), metrics.batch.labels(side)
        self._seconds = metrics.encode_seconds.labels(side)

    def __call__(self, texts: list[str]) -> Vectors:
        started = time.perf_counter()
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
    """Lower the priority of this thread and of the threads that it starts, so that queries get the cores first."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _DOCUMENT_NICENESS)
    except (AttributeError, OSError):  # only Linux has a priority for each thread
        return
