"""Adds a model's vector to the points of a collection that is in use; its other vectors stay.

It writes one named vector, its contract, and a hash under ``_care`` in each payload. Everything else stays as it is,
and `care_qdrant.vectors.detach` removes all of it again. The hashes are the only checkpoint: run it again after a
kill, after texts have changed, or from cron, and it encodes what is new or different and nothing else.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract, contract_metadata
from care_qdrant.contracts.layouts import Layout
from care_qdrant.contracts.metadata import ATTACH
from care_qdrant.contracts.payload import stored_hash
from care_qdrant.errors import FingerprintMismatch, InputError, counted, require_counts
from care_qdrant.ingestion.diff import remove_orphaned_hashes
from care_qdrant.ingestion.pipeline import (
    WINDOW_TEXTS,
    Maker,
    Worker,
    brought_vectors,
    document_vectors,
    require_encoder,
    term_vectors,
)
from care_qdrant.ingestion.settings import DocumentModel, name_of_vector, require_bm25_language, require_fraction
from care_qdrant.progress import OnProgress
from care_qdrant.qdrant.calls import in_pages
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import storage_settings
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.quantization import Quantization
from care_qdrant.qdrant.readable import PointId
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import CollectionSchema, now_noted
from care_qdrant.search.tuning import record_rescoring
from care_qdrant.vectors.points import MOST_UNREADABLE, Characters, PointReader, PointTask, PointWindow, texts_of
from care_qdrant.vectors.preflight import Preflight, bm25_contract, examine

WATCHING = RetryPolicy(attempts=5)
"""Retries of one pass of ``--watch``."""
# The next pass comes soon, and a signal should not wait for longer than a few seconds.


@dataclass(frozen=True, slots=True)
class AttachSettings:
    """Settings of an attach."""

    text_field: str | None = None
    """Payload field with the text, such as ``body`` or ``document.body``; None guesses."""
    quantization: Quantization | None = None
    on_disk: bool = False
    batch_tokens: int = 16_384
    """Padded tokens of one batch of the encoder."""
    max_delete_fraction: float = 0.2
    """Largest fraction of the vectors that may be removed because their points have no usable text any more, in
    [0, 1]."""
    bm25_language: str | None = None
    """Language of a new BM25 vector (`care_qdrant.encoders.terms.languages`); None detects it in the first texts."""
    any_language: bool = False
    """Attach a model also to texts of a language that it does not read."""

    def __post_init__(self) -> None:
        require_fraction("--max-delete-fraction", self.max_delete_fraction)
        require_counts(batch_tokens=self.batch_tokens)
        require_bm25_language(self.bm25_language)


@dataclass(slots=True)
class AttachReport:
    """Counts of an attach."""

    collection: str
    vector_name: str
    fingerprint: str
    tool: str
    """Tool that wrote the payloads, as guessed; empty without points."""
    text_field: str
    encoded: int = 0
    unchanged: int = 0
    """Points whose vector was made from the text that they have now."""
    without_text: int = 0
    """Points that get no vector: without a text or, for BM25, with a text that has no terms."""
    unreadable: list[PointId] = field(default_factory=list)
    """Ids of the first points of `without_text` that do have a text, but one of which the encoder makes no vector."""
    in_other_field: int = 0
    """Points without text in `text_field` that have one in another field."""
    removed: int = 0
    """Points of `without_text` whose vector of an earlier text was removed."""
    truncated: int = 0
    """Number of encoded points whose text is longer than the encoder reads."""
    points: int = 0
    """Number of points in the collection now, exactly."""
    covered: int = 0
    """Number of points that have the vector."""
    seconds: float = 0.0
    points_per_second: float = 0.0
    encoder_idle_fraction: float = 0.0
    """Fraction of the encoding time in which the encoder was idle, from 0 to 1."""


@accepts_client
def attach_vector(
    collection: Collection,
    model: DocumentModel | None,
    *,
    vector_name: str | None = None,
    settings: AttachSettings | None = None,
    stop: threading.Event | None = None,
    on_preflight: Callable[[Preflight], None] = lambda _: None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> AttachReport:
    """Add to every point of a collection a vector of a model, or of BM25, made from the text in its payload.

    Args:
        collection: An open Qdrant and a name; for an alias, the collection behind it now.
        model: The model; its document encoder is loaded only if something has to be encoded. None adds BM25, as
            ingestion writes it: the first run then reads all texts once more, for their mean length.
        vector_name: None takes the model's name, or ``bm25``.
        settings: Settings of the attach.
        stop: Event that ends the run after the batch that is being encoded, with a report of the points so far.
        on_preflight: Called before anything is written.
        on_progress: Called after each window and each batch.

    Raises:
        InputError: There is no such collection, no text in its payloads, or another program uses our payload key;
            the text field differs from the recorded one; or too many vectors would be removed.
        ContractError: Another model made the vectors of this name, or has begun to make them during this run.
        QdrantError: Qdrant refused or could not be reached; written vectors stay, and another run continues from there.
        EncodingError: The encoder returned no usable vector.
        MissingExtra: Documents cannot be encoded in this installation; nothing was written.
    """
    settings, name, target = settings or AttachSettings(), name_of_vector(vector_name, model), collection.whole()
    language = settings.bm25_language
    contract = bm25_contract(target.schema, name, language) if model is None else model.contract()
    reader = None if model is None or settings.any_language else model.document_tokenizer
    preflight = examine(target, name, contract, settings.text_field, reader)
    on_preflight(preflight)
    if preflight.is_emptied:
        return _nothing(target, name, contract)
    layout = _layout(target, name, preflight, settings)
    if model is not None and not preflight.has_vector:
        require_encoder(model)
    if isinstance(contract, SparseContract):
        contract = bm25_contract(target.schema, name, language, texts_of(target, layout))
    sparse = contract if isinstance(contract, SparseContract) else None
    counter = Characters() if model is None else model.document_tokenizer
    points = PointReader(layout, name, contract.constants, counter, sparse)
    _prepare(target, points, contract, settings, preflight)
    if isinstance(contract, SparseContract):
        maker = term_vectors(contract)
    else:
        assert model is not None
        maker = document_vectors(model, contract.dim)
    report = AttachReport(target.name, name, contract.fingerprint, layout.tool, layout.text_field)
    run = _Run(target, points, maker, settings, report, on_progress, stop or threading.Event())
    return run.go(points.windows(target), preflight.points)


def attach_encoded(
    collection: Collection,
    contract: VectorContract,
    pages: Iterable[tuple[models.ShardKey | None, Sequence[PointTask]]],
    *,
    vector_name: str,
    settings: AttachSettings,
    on_progress: OnProgress = lambda _done, _total: None,
) -> AttachReport:
    """Add vectors that were encoded beforehand to points of a collection, otherwise like `attach_vector`.

    Args:
        collection: An open Qdrant and a name; for an alias, the collection behind it now.
        contract: Contract of the vectors.
        pages: Tasks with their vectors, a few thousand at a time, each page with the key of their shards. A point
            whose text has changed meanwhile is skipped.
        vector_name: Name of the vector.
        settings: Settings of the attach.
        on_progress: Called after each page and each batch.

    Raises:
        InputError: There is no such collection, or no text in its payloads.
        ContractError: Another model made the vectors of this name.
        QdrantError: Qdrant refused or could not be reached; written vectors stay, and another run continues from there.
    """
    target = collection.whole()
    preflight = examine(target, vector_name, contract, settings.text_field)
    if preflight.is_emptied:
        return _nothing(target, vector_name, contract)
    layout = _layout(target, vector_name, preflight, settings)
    reader = PointReader(layout, vector_name, contract.constants, Characters())
    _prepare(target, reader, contract, settings, preflight)
    report = AttachReport(target.name, vector_name, contract.fingerprint, layout.tool, layout.text_field)
    run = _Run(
        target, reader, brought_vectors(contract.dim), settings, report, on_progress, threading.Event(), is_part=True
    )
    return run.go((reader.lacking(target.of_shard(key), tasks) for key, tasks in pages), preflight.points)


def _nothing(target: Collection, vector_name: str, contract: VectorContract | SparseContract) -> AttachReport:
    """Return the report on a collection that has no points any more."""
    _require_own_vector(target, vector_name, contract.constants)
    text_field = target.schema.text_field(vector_name) or ""
    return AttachReport(target.name, vector_name, contract.fingerprint, tool="", text_field=text_field)


def _layout(target: Collection, vector_name: str, preflight: Preflight, settings: AttachSettings) -> Layout:
    """Return the layout of the texts; refuse another text field for an existing vector."""
    layout = preflight.require_layout()
    if preflight.has_vector and not preflight.lost_contract:
        _require_same_field(target, vector_name, layout, settings)
    return layout


def _require_same_field(collection: Collection, vector_name: str, layout: Layout, settings: AttachSettings) -> None:
    """Refuse another text field than before, which would encode every point again."""
    made_of = collection.schema.text_field(vector_name)
    if settings.text_field is not None and made_of != layout.text_field:
        before = "by care-ingest or LlamaIndex, of their own text" if made_of is None else f"of field {made_of!r}"
        raise InputError(
            f"vector {vector_name!r} of collection {collection.name!r} was made {before}, and --text-field says "
            f"{layout.text_field!r}: every point would be re-encoded, and those without a text there would lose "
            "their vector. Leave --text-field out; attach another vector, with --vector-name; or remove what care "
            "attach made before, with care detach"
        )


def _prepare(
    collection: Collection,
    reader: PointReader,
    contract: VectorContract | SparseContract,
    settings: AttachSettings,
    preflight: Preflight,
) -> None:
    """Create the vector, or repair the hashes of an earlier run.

    The contract is written first: if the run is then killed, the next one sees its own contract without a vector and
    continues; a vector without a contract could be of any model. The text field of a contract is what makes a vector
    removable by detach, so a vector that ingestion made does not get one. A lost contract is written again.
    """
    schema, vector_name, layout = collection.schema, reader.vector_name, reader.layout
    has_vector = schema.has_vector(vector_name)
    had_lost_contract = preflight.lost_contract and layout.tool not in ("care", "llama-index")
    is_attached = (
        not has_vector or vector_name in schema.attached or settings.text_field is not None or had_lost_contract
    )
    text_field, beside = layout.text_field if is_attached else None, _first_of(schema, vector_name, contract)
    metadata = contract_metadata(vector_name, replace(contract, text_field=text_field, beside=beside))
    # In one write: a vector that exists and is incomplete is always marked so.
    note = {} if has_vector else _note(vector_name, {"first": True})
    collection.update("writing its model record", metadata=metadata | note)
    if not has_vector:
        collection.add_vector(vector_name, _vector_config(contract))
    # A detach that was killed has removed the vector, and left its record and some of its hashes.
    if has_vector or vector_name in schema.contracts or preflight.has_hashes:
        remove_orphaned_hashes(collection, vector_name, reader.needs_vector if reader.sparse else None)
    if isinstance(contract, VectorContract):
        _configure(collection, vector_name, settings)


def _first_of(schema: CollectionSchema, vector_name: str, contract: VectorContract | SparseContract) -> str | None:
    """Return the vector of the same maker that readers use by default; None if it is the first."""
    known = schema.contracts.get(vector_name)
    if isinstance(known, VectorContract | SparseContract):
        return known.beside
    same = (name for name, made in schema.contracts.items() if made.fingerprint == contract.fingerprint)
    return next((name for name in same if schema.has_vector(name) and not schema.is_beside(name)), None)


def _require_own_vector(collection: Collection, vector_name: str, constants: str) -> None:
    """Refuse a vector that was detached meanwhile, or replaced by another model's, also with the whole collection."""
    schema = collection.refresh()
    made = schema.contracts.get(vector_name) if schema.has_vector(vector_name) else None
    if isinstance(made, VectorContract | SparseContract) and made.constants == constants:
        return
    now = "it is gone" if made is None else f"another model ({made.fingerprint[:12]}) makes it now"
    raise FingerprintMismatch(
        f"vector {vector_name!r} of collection {collection.name!r} was replaced while this run wrote: {now}. Of the "
        "vectors that this run wrote, some may be there; an attach of the model that makes it now replaces them"
    )


def _note(vector_name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return ATTACH.change({"started": now_noted(), **entry}, vector_name)


def end_attach(collection: Collection, vector_name: str) -> None:
    """Remove the note that an attach has begun; without one, nothing is written."""
    if ATTACH.find(collection.refresh().metadata, vector_name) is not None:
        collection.update("noting the end of the attach", metadata=ATTACH.change(None, vector_name))


def _vector_config(contract: VectorContract | SparseContract) -> models.VectorNameConfig:
    if isinstance(contract, SparseContract):
        return models.SparseVectorNameConfig(sparse=models.SparseVectorConfig(modifier=models.Modifier.IDF))
    dense = models.DenseVectorConfig(size=contract.dim, distance=contract.qdrant_distance)
    return models.DenseVectorNameConfig(dense=dense)


def _configure(collection: Collection, vector_name: str, settings: AttachSettings) -> None:
    """Make a server store the vector as requested, also if a killed run only created it."""
    settings_of_vector = storage_settings(collection, settings.quantization, on_disk=settings.on_disk)
    params = collection.schema.dense.get(vector_name)
    if (
        collection.is_embedded
        or params is None
        or all(getattr(params, key) == value for key, value in settings_of_vector.items())
    ):
        return
    collection.update(
        "configuring the vector", vectors_config={vector_name: models.VectorParamsDiff(**settings_of_vector)}
    )


@dataclass(slots=True)
class _Run:
    """State of an attach, after everything was checked."""

    collection: Collection
    reader: PointReader
    maker: Maker
    settings: AttachSettings
    report: AttachReport
    on_progress: OnProgress
    stop: threading.Event
    is_part: bool = False
    """Whether other runs write the other points: the mark of an unfinished attach then stays for `end_attach`."""

    def go(self, windows: Iterator[PointWindow], total: int) -> AttachReport:
        """Read, encode and write, each in its own threads."""
        start, name = time.perf_counter(), self.reader.vector_name
        report, collection, read = self.report, self.collection, 0
        has_begun = ATTACH.find(collection.schema.metadata, name) is not None
        text_gone = defaultdict[Collection, list[PointId]](list)

        def begin(window: PointWindow) -> None:
            nonlocal read, has_begun
            _require_own_vector(collection, name, self.reader.constants)
            if window.encode and not has_begun:
                has_begun = True
                collection.update("noting the attach", metadata=_note(name, {}))
            read += window.read
            report.unchanged += window.unchanged
            report.without_text += window.without_text
            report.unreadable += window.unreadable[: MOST_UNREADABLE - len(report.unreadable)]
            report.in_other_field += window.in_other_field
            text_gone[window.place] += window.text_gone
            show()

        def on_batch(_window: PointWindow, tasks: Sequence[PointTask]) -> None:
            report.encoded += len(tasks)
            report.truncated += sum(task.tokens > self.reader.counter.max_tokens for task in tasks)
            show()

        def show() -> None:
            self.on_progress(report.unchanged + report.without_text + report.encoded, max(total, read))

        worker = Worker[PointTask](
            self.maker,
            lambda task, row: models.PointStruct.model_construct(
                id=task.id, vector={name: row}, payload={name: task.hash}
            ),
            self.settings.batch_tokens,
            (name,),
            stop=self.stop,
            failed=None if self.is_part else [],
        )
        worker.run(windows, collection, begin, on_batch)
        _require_own_vector(collection, name, self.reader.constants)
        for place, task, _ in worker.failed or ():
            report.without_text += 1
            report.unreadable += [task.id] if len(report.unreadable) < MOST_UNREADABLE else []
            text_gone[place].append(task.id)
        if not self.stop.is_set():
            if not self.is_part:
                end_attach(collection, name)
            failed = {task.hash for _, task, _ in worker.failed or ()}
            pages = ((place, page) for place, ids in text_gone.items() for page in in_pages(ids, WINDOW_TEXTS))
            report.removed = self._remove([(place, self._still_gone(place, page, failed)) for place, page in pages])
            record_rescoring(collection, name)
        seconds = time.perf_counter() - start
        report.points, report.covered = collection.count(), collection.count_with_vector(name)
        _require_own_vector(collection, name, self.reader.constants)  # also of a collection that was made again
        report.seconds, report.points_per_second = round(seconds, 3), round(report.encoded / seconds, 1)
        report.encoder_idle_fraction = round(worker.meter.idle_fraction, 4)
        return report

    def _still_gone(self, place: Collection, ids: Sequence[PointId], failed: Set[str]) -> list[PointId]:
        """Return the points that have the vector of an earlier text and still no text of which one can be made.

        Another writer may have brought a text back, and its vector, since this run has read the point.
        """
        records, window = place.retrieve(ids), PointWindow(place)
        self.reader.sort(window, [*records.values()])
        gone = [*window.text_gone, *(task.id for task in window.encode if task.hash in failed)]
        return [id_ for id_ in gone if stored_hash(records[id_].payload or {}, self.reader.vector_name) is not None]

    def _remove(self, text_gone: Sequence[tuple[Collection, Sequence[PointId]]]) -> int:
        """Remove the vector, and then its hash, from points without a usable text; return their number."""
        removed, name = sum(len(ids) for _, ids in text_gone), self.reader.vector_name
        if removed:
            covered, largest = self.collection.count_with_vector(name), self.settings.max_delete_fraction
            if removed > largest * covered:
                raise InputError(
                    f"{counted(removed, 'point', of=covered)} with vector {name!r} of collection "
                    f"{self.collection.name!r} {'has' if removed == 1 else 'have'} no usable text under "
                    f"{self.reader.layout.text_field!r} any more, more than the fraction {largest} that may lose it. "
                    "All others are done, and nothing was removed. Check the texts, or give --max-delete-fraction"
                )
            for part, ids in text_gone:
                part.delete_vector_of(ids, name)
            remove_orphaned_hashes(self.collection, name, self.reader.needs_vector if self.reader.sparse else None)
        return removed
