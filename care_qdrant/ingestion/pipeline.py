"""The pipeline of ingestion and attach: compares windows of texts with stored points, encodes and writes them.

A source (`ingestion.rows` for a corpus, `vectors.points` for a collection) compares content hashes
with the stored ones and yields windows of tasks. A `Worker` encodes the tasks in batches of equal length and writes
them. Three things run at once: the source some windows ahead, the encoder, and the sender threads behind it. The hashes
in the stored payloads are the only checkpoint: a killed run is finished by running it again.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.encoders.ahead import Meter, alike_of, calls_of, run_ahead
from care_qdrant.encoders.batching import ALIKE, token_batches
from care_qdrant.encoders.usable import require_usable
from care_qdrant.errors import EncodingError, UnusableText
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import tune_embedded
from care_qdrant.qdrant.sender import Kind, Sender, Write, by_size
from care_qdrant.types import Vectors

WINDOW_TEXTS = 4_096
"""Number of documents of a corpus, or of points to encode, that make a window."""
# This many fill batches with texts of equal length: padding is then about 1 %.
WINDOWS_AHEAD = 2
"""Number of windows that are read and compared while the encoder works on another one."""
TERM_NUMBERS = 512
"""Estimated number of components of a vector of terms."""
PLAIN_TEXT = "血压 blood pressure 120"
"""Text of which a model of any language makes a vector, unless the encoder is at fault."""
ENCODER_BROKEN = 8
"""Number of texts without a vector, one after the other, after which the encoder is asked for that of a plain text."""
LEAVE_SECONDS = 2.0
"""Longest time to wait for the reading thread when its consumer stops."""
# A thread that reads an idle pipe never ends, and is left behind.


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A text of which a point needs the vector."""

    text: str
    """Text that the encoder reads."""
    tokens: int
    """Length of the text in tokens, counted when it was read."""
    name: str
    """Name of the text in messages, for example with the id of its document."""
    kind: Kind
    """Kind of the request that writes its point."""
    unchanged: tuple[models.Condition, ...] = ()
    """Conditions that a stored point still has to meet when it is written."""
    vector: Vectors | None = None
    """The vector of the text, where a bulk job has made it; None where it is still to be encoded."""


I = TypeVar("I")  # noqa: E741  # an item
T = TypeVar("T", bound=Task)
Rows = Sequence[Any] | Vectors
"""Vectors of tasks, one for each, as Qdrant takes them: rows of `Vectors`, or sparse vectors."""


@dataclass(slots=True)
class Window(Generic[T]):
    """A few thousand texts that were compared with the stored points, before any encoding."""

    place: Collection
    """Collection to which the texts are written, or its shards of one key."""
    encode: list[T] = field(default_factory=list)
    update: list[T] = field(default_factory=list)
    """Tasks whose stored dense vector is current, while the payload or the sparse vector is not."""
    unchanged: int = 0
    """Texts whose stored points are current."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the vectors of tasks."""

    make: Callable[[Sequence[Any]], Rows]
    """Return the vectors of tasks, checked."""
    numbers: int
    """Approximate number of components of a vector, by which requests are cut to size."""
    calls: Callable[[], int] = lambda: 1
    """Return how many batches `make` can process at a time; called before the first batch."""
    alike: Callable[[], float] = lambda: ALIKE
    """Return how similar in length the texts of a batch should be for `make`."""

    def batches(self, tasks: Sequence[Task], batch_tokens: int) -> Iterator[list[int]]:
        """Yield batches of indices of tasks, the longest texts first."""
        if tasks:  # otherwise no encoder is loaded that could answer
            yield from token_batches([task.tokens for task in tasks], batch_tokens, alike=self.alike())


def document_vectors(model: DocumentModel, dim: int) -> Maker:
    """Return the maker that encodes with a model's document encoder, and refuses vectors that no search would find."""

    def make(tasks: Sequence[Task]) -> Rows:
        try:
            vectors = model.document_encoder.encode([task.text for task in tasks])
        except UnusableText as error:
            raise error.named([task.name for task in tasks]) from error
        require_usable(vectors, (len(tasks), dim), lambda row: tasks[row].name)
        return vectors

    return Maker(make, dim, lambda: calls_of(model.document_encoder), lambda: alike_of(model.document_encoder))


def brought_vectors(dim: int) -> Maker:
    """Return the maker for tasks that already have their vectors, which are checked like an encoder's."""

    def make(tasks: Sequence[Task]) -> Rows:
        vectors: Vectors = np.stack([task.vector for task in tasks])  # type: ignore[misc]  # each brings one
        require_usable(vectors, (len(tasks), dim), lambda row: tasks[row].name)
        return vectors

    return Maker(make, dim)


def make_apart(make: Callable[[Sequence[Any]], Rows], tasks: Sequence[Task]) -> tuple[list[int], Rows, dict[int, str]]:
    """Return the places of the tasks that get a vector, their vectors, and why each other one gets none.

    Raises:
        EncodingError: The encoder is at fault rather than the texts: it gives no vector for a plain text either.
    """
    try:
        return list(range(len(tasks))), make(tasks), {}
    except EncodingError as error:
        of_all = error

    def require_sound() -> None:
        try:
            make([replace(tasks[0], text=PLAIN_TEXT)])
        except EncodingError as error:
            raise of_all from error

    rows: dict[int, Any] = {}
    failed: dict[int, EncodingError] = {}
    for _ in range(2):  # each text alone, and once more: a server may have failed for a while
        for place in [place for place in range(len(tasks)) if place not in rows]:
            try:
                rows[place] = make([tasks[place]])[0]
                failed.pop(place, None)
            except EncodingError as error:
                failed[place] = error
                if len(failed) == ENCODER_BROKEN and not rows:
                    require_sound()
    if not all(isinstance(error, UnusableText) for error in failed.values()):
        require_sound()
    return [*rows], [*rows.values()], {place: str(error) for place, error in failed.items()}


def require_encoder(model: DocumentModel) -> None:
    """Load the document encoder of a model whose first vector is about to be written.

    So its weights, packages, device and servers are known to be available before the collection records that a run has
    begun.
    """
    model.require_documents()
    model.document_encoder  # noqa: B018  # reading it loads it


def term_vectors(contract: SparseContract) -> Maker:
    """Return the maker of BM25 vectors."""
    return Maker(lambda tasks: [contract.vector(task.text) for task in tasks], TERM_NUMBERS)


@dataclass(slots=True)
class Worker(Generic[T]):
    """Encodes and writes tasks."""

    maker: Maker
    point: Callable[[T, Any], models.PointStruct]
    """Return the point to write for a task and its vector, which is None if it is already stored."""
    batch_tokens: int
    """Padded tokens of one batch."""
    names: tuple[str, ...]
    """Names of the vectors of the run."""
    meter: Meter = field(default_factory=Meter)
    """Meter of the calls of the maker."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Event that ends the run after the batch that is being encoded."""
    failed: list[tuple[Collection, T, str]] | None = None
    """Tasks without a vector so far, each with its place and the reason; None ends the run at the first one."""
    sender: Sender | None = None

    @property
    def stored(self) -> int:
        """Points that Qdrant has acknowledged in this run."""
        return self.sender.stored if self.sender is not None else 0

    def run(
        self,
        windows: Iterator[Window[T]],
        collection: Collection,
        begin: Callable[[Any], None],
        on_batch: Callable[[Any, Sequence[T]], None],
    ) -> None:
        """Encode and write windows."""
        tune_embedded(collection.client, collection.name)
        with closing(read_ahead(windows, WINDOWS_AHEAD)) as ready, Sender(collection) as self.sender:
            batches = self._batches(ready, begin)
            with closing(run_ahead(batches, lambda batch: self._encode(batch[1]), self.maker.calls)) as encoded:
                for (window, batch), (places, rows, failed) in encoded:
                    tasks = [batch[place] for place in places]
                    if self.failed is not None:
                        self.failed += [(window.place, batch[at], reason) for at, reason in failed.items()]
                    self.sender.submit(partial(self.requests, tasks, rows, window.place.limits.write), window.place)
                    on_batch(window, tasks)
                    if self.stop.is_set():
                        break

    def _batches(
        self, windows: Iterator[Window[T]], begin: Callable[[Any], None]
    ) -> Iterator[tuple[Window[T], list[T]]]:
        """Yield the batches of all windows; a window begins while the last batches of the previous one are encoded."""
        assert self.sender is not None
        for window in windows:
            begin(window)
            if window.update:
                self.sender.submit(partial(self.requests, window.update, None, window.place.limits.write), window.place)
            for batch in self.maker.batches(window.encode, self.batch_tokens):
                yield window, [window.encode[index] for index in batch]
            if self.stop.is_set():
                return

    def _encode(self, tasks: Sequence[T]) -> tuple[list[int], Rows, dict[int, str]]:
        with self.meter.running([task.tokens for task in tasks]):
            if self.failed is None:
                return list(range(len(tasks))), self.maker.make(tasks), {}
            return make_apart(self.maker.make, tasks)

    def requests(self, tasks: Sequence[T], rows: Rows | None, size: int) -> Iterator[Write]:
        """Build points in a sender's thread, so that the encoder does not wait; None for ``rows`` keeps the vectors."""
        for start in range(0, len(tasks), size):
            page = tasks[start : start + size]
            page_rows = [None] * len(page) if rows is None else rows[start : start + size]
            points = [(task, self.point(task, row)) for task, row in zip(page, page_rows, strict=True)]
            unchanged = {point.id: task.unchanged for task, point in points if task.unchanged}
            for kind in dict.fromkeys(task.kind for task in page):
                of_kind = [point for task, point in points if task.kind == kind]
                write = Write(of_kind, kind, self.names, unchanged)
                yield from by_size(write, self.maker.numbers, size)


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


_END: Any = object()


def read_ahead(items: Iterator[I], depth: int) -> Generator[I, None, None]:
    """Yield the items in order, while a thread makes up to ``depth`` more; its error is raised in place of an item."""
    ready: SimpleQueue[Any] = SimpleQueue()
    room = threading.Semaphore(depth)
    stopped = threading.Event()

    def produce() -> None:
        try:
            for item in items:
                ready.put(item)
                room.acquire()
                if stopped.is_set():
                    return
        except BaseException as error:
            ready.put(_Failure(error))
        else:
            ready.put(_END)

    # A daemon, since it may wait for a pipe for ever; an executor would join its threads at exit and block Ctrl-C.
    reader = threading.Thread(target=produce, name="reader", daemon=True)
    reader.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            room.release()
            yield item
    finally:
        stopped.set()
        room.release()
        reader.join(LEAVE_SECONDS)
