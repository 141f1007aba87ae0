"""Adds a model's vector to the points of a collection that is in use, beside the vectors that it has.

It writes one named vector, its contract, and a hash under ``_care`` in each payload. Everything else stays as it is,
and `care_qdrant.attach.detach` takes all of it away again. The hashes are the only checkpoint: run it again after a
kill, after texts have changed, or from cron, and it encodes what is new or different and nothing else.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from qdrant_client import QdrantClient, models

from care_qdrant.attach.addition import Addition
from care_qdrant.attach.pace import Pace
from care_qdrant.attach.preflight import Preflight, examine
from care_qdrant.attach.stored_texts import Text, Window, read_windows
from care_qdrant.encoders.batching import token_batches
from care_qdrant.encoders.usable import require_usable
from care_qdrant.errors import InputError
from care_qdrant.ingestion.ahead import read_ahead
from care_qdrant.ingestion.report import Stopwatch
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.ingestion.vector_hashes import drop_false_claims
from care_qdrant.store.attached import ATTACH_KEY
from care_qdrant.store.connection import is_embedded, tune_embedded
from care_qdrant.store.contracts import VectorContract, dense_vectors, write_contract
from care_qdrant.store.create import QUANTIZATION
from care_qdrant.store.inventory import count_with_vector
from care_qdrant.store.layout import Layout
from care_qdrant.store.limits import read_limits
from care_qdrant.store.points import PointId
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.store.schema import resolve
from care_qdrant.store.sender import Sender, Write, in_requests
from care_qdrant.types import Vectors

WINDOWS_AHEAD = 2

OnProgress = Callable[[int, int], None]
"""Gets the points that were dealt with, and how many there are."""


@dataclass(frozen=True, slots=True)
class AttachSettings:
    """How to attach."""

    text_field: str | None = None
    """Where in a payload the text is, as ``body`` or ``document.body``; None guesses."""
    quantization: str | None = None
    """Of the new vector: ``int8`` or ``binary``."""
    on_disk: bool = False
    """Keep the new vectors on disk."""
    points_per_second: float | None = None
    """Write no faster than this, for the sake of those who search meanwhile."""
    batch_tokens: int = 16_384
    """Padded tokens that the encoder gets at once."""

    def __post_init__(self) -> None:
        if self.points_per_second is not None and self.points_per_second <= 0:
            raise InputError(f"--points-per-second is {self.points_per_second}; expected a number above 0")


@dataclass(frozen=True, slots=True)
class AttachReport:
    """What a run did."""

    collection: str
    vector_name: str
    fingerprint: str
    tool: str
    """Who wrote the payloads, as guessed."""
    text_field: str
    encoded: int
    unchanged: int
    """Points whose vector was made of the text that they have now."""
    without_text: int
    """Points that get no vector."""
    removed: int
    """Of them, those whose vector of an earlier text was taken away."""
    truncated: int
    """Of those encoded: texts longer than the encoder reads."""
    points: int
    """In the collection now, exactly."""
    covered: int
    """Of them, those that have the vector."""
    seconds: float
    points_per_second: float
    encoder_idle_fraction: float
    """Of the encoding time: how much of it the encoder stood still."""


def attach(
    client: QdrantClient,
    collection: str,
    model: DocumentModel,
    *,
    vector_name: str | None = None,
    settings: AttachSettings | None = None,
    retries: RetryPolicy | None = None,
    stop: threading.Event | None = None,
    on_preflight: Callable[[Preflight], None] = lambda _: None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> AttachReport:
    """Give every point of a collection a vector of a model, made of the text in its payload.

    Args:
        client: An open Qdrant.
        collection: Name or alias; with an alias, the collection that is behind it now.
        model: The pair; its document encoder is loaded only if something has to be encoded.
        vector_name: None takes the model's name.
        settings: How.
        retries: How patient to be with a server.
        stop: When it is set, the run ends after the batch that is being encoded, with a report of what it has done.
        on_preflight: Called before anything is written.
        on_progress: Called after each window and each batch.

    Raises:
        InputError: there is no such collection, or no text in its payloads.
        ContractError: another model made the vectors of this name.
        QdrantError: Qdrant refused or could not be reached; what was written stays, and another run goes on from there.
        EncodingError: the encoder gave no usable vector.
    """
    settings = settings or AttachSettings()
    name = vector_name or model.name
    contract = model.contract()
    alias = Collection(client, collection, retries)
    link = Collection(client, alias.call("looking it up", lambda: resolve(client, collection)), retries)
    preflight = examine(link, name, contract, settings.text_field)
    on_preflight(preflight)
    if preflight.problems or preflight.layout is None:
        raise preflight.problems[0]
    _prepare(link, name, contract, preflight, settings)
    run = _Run(link, model, name, contract, preflight.layout, settings, on_progress, stop or threading.Event())
    return run.go(preflight.points)


def _prepare(
    link: Collection, vector_name: str, contract: VectorContract, preflight: Preflight, settings: AttachSettings
) -> None:
    """Create the vector, or make the hashes of an earlier run true.

    The contract comes first: a run that is killed after it finds its own contract without a vector and goes on; a
    vector without a contract would be anybody's.
    """
    assert preflight.layout is not None
    texts = {ATTACH_KEY: {"text_field": preflight.layout.text_field}}
    write = partial(write_contract, link.client, link.collection, vector_name, contract, texts)
    link.call("writing its contract", write)
    if preflight.has_vector:
        drop_false_claims(link, vector_name)
    else:
        dense = models.DenseVectorConfig(size=contract.dim, distance=models.Distance.COSINE)
        config = models.DenseVectorNameConfig(dense=dense)
        link.call("adding the vector", lambda: link.client.create_vector_name(link.collection, vector_name, config))
    link.call("configuring the vector", lambda: _configure(link, vector_name, settings))


def _configure(link: Collection, vector_name: str, settings: AttachSettings) -> None:
    """Let a server store the vector as asked; a run that was killed may have created it and no more."""
    quantization = QUANTIZATION[settings.quantization]
    if is_embedded(link.client) or not (quantization or settings.on_disk):
        return
    params = dense_vectors(link.client, link.collection)[vector_name]
    found = params.quantization_config, params.on_disk
    if (quantization or found[0], settings.on_disk or found[1]) != found:
        diff = models.VectorParamsDiff(quantization_config=quantization, on_disk=settings.on_disk or None)
        link.client.update_collection(link.collection, vectors_config={vector_name: diff})


@dataclass(slots=True)
class _Run:
    """One attach, after everything was checked."""

    link: Collection
    model: DocumentModel
    vector_name: str
    contract: VectorContract
    layout: Layout
    settings: AttachSettings
    on_progress: OnProgress
    stop: threading.Event

    def go(self, total: int) -> AttachReport:
        """Read, encode and write, each in its own threads."""
        start, watch = time.perf_counter(), Stopwatch()
        pace = Pace(self.settings.points_per_second, sleep=self.stop.wait)
        encoded = truncated = read = unchanged = without_text = removed = 0
        tune_embedded(self.link.client, self.link.collection)
        with closing(read_ahead(self._windows(), WINDOWS_AHEAD)) as windows, Sender(self.link) as sender:
            for window in windows:
                read, unchanged = read + window.read, unchanged + window.unchanged
                without_text += window.without_text
                removed += self._remove(window.outlived)
                for batch in token_batches([text.tokens for text in window.texts], self.settings.batch_tokens):
                    if self.stop.is_set():
                        break
                    texts = [window.texts[index] for index in batch]
                    with watch.running():
                        vectors = self._encode(texts)
                    sender.submit(partial(self._requests, texts, vectors))
                    encoded += len(texts)
                    truncated += sum(text.tokens > self.model.document_tokenizer.max_tokens for text in texts)
                    self.on_progress(unchanged + without_text + encoded, max(total, read))
                    pace.wait(len(texts))
                if self.stop.is_set():
                    break
                self.on_progress(unchanged + without_text + encoded, max(total, read))
        seconds = time.perf_counter() - start
        return AttachReport(
            collection=self.link.collection,
            vector_name=self.vector_name,
            fingerprint=self.contract.fingerprint,
            tool=self.layout.tool,
            text_field=self.layout.text_field,
            encoded=encoded,
            unchanged=unchanged,
            without_text=without_text,
            removed=removed,
            truncated=truncated,
            points=self.link.call("counting", lambda: self.link.client.count(self.link.collection, exact=True)).count,
            covered=self.link.call("counting", self._count_covered),
            seconds=round(seconds, 3),
            points_per_second=round(encoded / seconds, 1),
            encoder_idle_fraction=round(watch.idle_share, 4),
        )

    def _remove(self, ids: Sequence[PointId]) -> int:
        """Take the vector, and then its hash, from points whose text is gone; give their number."""
        size = read_limits(self.link).write
        for start in range(0, len(ids), size):
            self.link.write("removing vectors", partial(self._delete_vectors, ids[start : start + size]))
        if ids:
            drop_false_claims(self.link, self.vector_name)
        return len(ids)

    def _delete_vectors(self, ids: Sequence[PointId]) -> models.UpdateResult:
        # By condition and not by list of ids: an id that somebody deletes meanwhile would fail the request.
        there = models.Filter(must=[models.HasIdCondition(has_id=list(ids))])
        return self.link.client.delete_vectors(self.link.collection, [self.vector_name], there, wait=True)

    def _count_covered(self) -> int:
        return count_with_vector(self.link.client, self.link.collection, self.vector_name)

    def _encode(self, texts: list[Text]) -> Vectors:
        vectors = self.model.document_encoder.encode([text.text for text in texts])
        require_usable(vectors, (len(texts), self.contract.dim), lambda row: f"point {texts[row].id!r}")
        return vectors

    def _requests(self, texts: list[Text], vectors: Vectors) -> Iterator[Write]:
        """Build points; called in a sender's thread, so that the encoder does not wait for it."""
        points = [
            models.PointStruct(id=text.id, vector={self.vector_name: row}, payload={self.vector_name: text.hash})
            for text, row in zip(texts, vectors.tolist(), strict=True)
        ]
        yield from in_requests(Addition(points), self.contract.dim, read_limits(self.link).write)

    def _windows(self) -> Iterator[Window]:
        return read_windows(
            self.link, self.layout, self.vector_name, self.contract.fingerprint, self.model.document_tokenizer
        )
