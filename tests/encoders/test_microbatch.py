"""The micro-batcher: nobody lost, nobody crossed, whatever happens to the neighbours."""

import gc
import multiprocessing
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import numpy as np
import pytest

from care_qdrant.encoders.microbatch import MicroBatcher
from care_qdrant.errors import CareError, EncodingError
from care_qdrant.types import Vectors
from tests.tiny import HashEncoder


class GatedEncoder:
    """Encodes when the gate is open, notes each batch, and refuses texts that hold ``bad``."""

    def __init__(self) -> None:
        self.inner = HashEncoder()
        self.batches: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, texts: Sequence[str]) -> Vectors:
        self.batches.append(list(texts))
        self.entered.release()
        self.gate.wait()
        if any("bad" in text for text in texts):
            raise ValueError("bad text")
        return self.inner.encode(texts)

    def block(self, batcher: MicroBatcher, text: str) -> "Future[Vectors]":
        """Close the gate behind a text, so that others wait."""
        self.gate.clear()
        running = batcher.submit(text)
        self.entered.acquire()
        return running

    def expected(self, text: str) -> list[float]:
        return [float(value) for value in HashEncoder().encode([text])[0]]


def test_an_idle_encoder_answers_in_the_callers_thread() -> None:
    threads: list[threading.Thread] = []

    def encode(texts: Sequence[str]) -> Vectors:
        threads.append(threading.current_thread())
        return HashEncoder().encode(texts)

    batcher = MicroBatcher(encode)
    vector = batcher.encode("耳鸣")
    assert np.array_equal(vector, HashEncoder().encode(["耳鸣"])[0])
    assert threads == [threading.current_thread()]


def test_what_waited_becomes_one_batch_of_different_texts() -> None:
    encoder = GatedEncoder()
    batcher = MicroBatcher(encoder, max_batch=8)
    first = encoder.block(batcher, "first")
    texts = [f"query {number % 6}" for number in range(12)]
    futures = [batcher.submit(text) for text in texts]
    encoder.gate.set()
    assert first.result().tolist() == encoder.expected("first")
    for text, future in zip(texts, futures, strict=True):
        assert future.result().tolist() == encoder.expected(text)
    assert encoder.batches[0] == ["first"]
    assert [len(batch) for batch in encoder.batches[1:]] == [6, 4], "8 and 4 requests, equal texts once"


def test_a_caller_that_finds_the_encoder_busy_waits_in_line() -> None:
    encoder = GatedEncoder()
    batcher = MicroBatcher(encoder)
    running = encoder.block(batcher, "running")
    with ThreadPoolExecutor(4) as pool:
        late = [pool.submit(batcher.encode, f"late {number}") for number in range(4)]
        encoder.gate.set()
        for number, future in enumerate(late):
            assert future.result().tolist() == encoder.expected(f"late {number}")
    assert running.done()


def test_one_bad_text_fails_alone() -> None:
    encoder = GatedEncoder()
    batcher = MicroBatcher(encoder)
    encoder.block(batcher, "first")
    texts = ["a", "b", "bad", "c", "d"]
    futures = [batcher.submit(text) for text in texts]
    encoder.gate.set()
    for text, future in zip(texts, futures, strict=True):
        if text == "bad":
            with pytest.raises(ValueError, match="bad text"):
                future.result()
        else:
            assert future.result().tolist() == encoder.expected(text)
    assert batcher.encode("after").tolist() == encoder.expected("after")


def test_a_failure_in_the_callers_thread_leaves_the_line_open() -> None:
    batcher = MicroBatcher(GatedEncoder())
    with pytest.raises(ValueError, match="bad text"):
        batcher.encode("bad")
    assert batcher.encode("good").tolist() == GatedEncoder().expected("good")


def test_too_few_rows_are_an_error_and_not_a_shift() -> None:
    batcher = MicroBatcher(lambda texts: HashEncoder().encode(texts[1:]))
    with pytest.raises(EncodingError, match="0 rows for 1 text"):
        batcher.submit("lonely").result()


def test_a_cancelled_text_is_never_encoded() -> None:
    encoder = GatedEncoder()
    batcher = MicroBatcher(encoder)
    running = encoder.block(batcher, "running")
    cancelled, kept = batcher.submit("cancelled"), batcher.submit("kept")
    assert cancelled.cancel()
    assert not running.cancel(), "too late"
    encoder.gate.set()
    assert kept.result().tolist() == encoder.expected("kept")
    with pytest.raises(CancelledError):
        cancelled.result()
    assert encoder.batches == [["running"], ["kept"]]


def test_no_more_batches_run_at_a_time_than_workers() -> None:
    running, most, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2)

    def encode(texts: Sequence[str]) -> Vectors:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()
        with lock:
            running -= 1
        return HashEncoder().encode(texts)

    batcher = MicroBatcher(encode, max_batch=1, workers=2)
    futures = [batcher.submit(f"query {number}") for number in range(8)]
    assert len([future.result() for future in futures]) == 8
    assert most == 2


def test_workers_share_those_who_wait() -> None:
    encoder = GatedEncoder()
    batcher = MicroBatcher(encoder, workers=2)
    for text in ("first", "second"):
        encoder.block(batcher, text)
    futures = [batcher.submit(f"query {number}") for number in range(8)]
    encoder.gate.set()
    for number, future in enumerate(futures):
        assert future.result().tolist() == encoder.expected(f"query {number}")
    assert max(len(batch) for batch in encoder.batches) == 4


def test_close_answers_what_was_submitted_and_refuses_the_rest() -> None:
    encoder = GatedEncoder()
    batcher = MicroBatcher(encoder, max_batch=2)
    futures = [batcher.submit(f"query {number}") for number in range(7)]
    batcher.close()
    assert all(future.done() for future in futures)
    for call in (batcher.encode, batcher.submit):
        with pytest.raises(CareError, match="closed"):
            call("late")
    batcher.close()


def test_a_forgotten_batcher_ends_its_thread() -> None:
    before = {*threading.enumerate()}  # workers of other tests may still be ending
    batcher = MicroBatcher(GatedEncoder())
    batcher.submit("x").result()
    (worker,) = (thread for thread in threading.enumerate() if thread not in before)
    reference = weakref.ref(batcher)
    del batcher
    gc.collect()
    assert reference() is None
    worker.join(timeout=10)
    assert not worker.is_alive()


def _in_child(batcher: MicroBatcher, pipe: "multiprocessing.connection.Connection") -> None:
    pipe.send((batcher.encode("direct").tolist(), batcher.submit("queued").result().tolist()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_encodes_with_its_own_worker() -> None:
    encoder = GatedEncoder()
    batcher = MicroBatcher(encoder)
    batcher.submit("before").result()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(batcher, theirs))
    child.start()
    assert ours.poll(30), "the child hangs"
    assert ours.recv() == (encoder.expected("direct"), encoder.expected("queued"))
    child.join()
    assert child.exitcode == 0
    assert batcher.submit("after").result().tolist() == encoder.expected("after")
