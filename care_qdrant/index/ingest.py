"""Corpus to collection: read, skip what is stored, encode the rest in full batches, write, count.

Three things run at once: a reader that cuts and compares a few windows ahead, the encoder, and the sender threads
behind it. The hashes in the stored payloads are the only checkpoint: a killed run is finished by running it again.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from qdrant_client import QdrantClient

from care_qdrant.corpus.files import CorpusPath
from care_qdrant.corpus.rejects import RejectsFile
from care_qdrant.corpus.rows import Reject
from care_qdrant.encoders.batching import token_batches
from care_qdrant.errors import CareError, InputError, QdrantError
from care_qdrant.index.ahead import read_ahead
from care_qdrant.index.dry_run import estimate
from care_qdrant.index.guard import RunGuard
from care_qdrant.index.plan import Plan, Task, check_vectors, has_other_writers
from care_qdrant.index.reading import Reader
from care_qdrant.index.report import Estimate, IngestReport, Progress, Stopwatch, Tally
from care_qdrant.index.seen import Seen
from care_qdrant.index.settings import DocumentModel, IngestSettings
from care_qdrant.index.source import Reading, Source, open_source, require_document, sparse_contract
from care_qdrant.index.sync import delete_missing, delete_surplus_chunks
from care_qdrant.index.vector_hashes import remove_orphaned_hashes
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import tune_embedded
from care_qdrant.qdrant.create import (
    PointVectors,
    Storage,
    create_collection,
    finish_load,
    index_schemas,
    join_collection,
    join_shard_key,
)
from care_qdrant.qdrant.quantization import record_rescoring
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import Limits
from care_qdrant.qdrant.sender import Change, Insert, Sender, Write, in_requests
from care_qdrant.qdrant.version_record import version_record
from care_qdrant.types import Document, Vectors

logger = logging.getLogger(__name__)

WINDOWS_AHEAD = 2


def ingest(
    corpus: CorpusPath | Iterable[Document],
    model: DocumentModel,
    client: QdrantClient,
    collection: str,
    *,
    vector_name: str | None = None,
    settings: IngestSettings | None = None,
    storage: Storage | None = None,
    reading: Reading | None = None,
    retries: RetryPolicy | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_stopped: Callable[[IngestReport], None] = lambda _: None,
) -> IngestReport:
    """Put a corpus into a named vector of a collection, which is created where it is not there.

    Args:
        corpus: Files (see `Corpus`), whose rejected rows go to a file beside them; or documents.
        model: The pair; its document encoder is loaded only if something has to be encoded.
        client: An open Qdrant.
        collection: Its name.
        vector_name: None takes the model's name.
        settings: What to do with the corpus.
        storage: How a new collection holds its vectors.
        reading: How files are read.
        retries: How patient to be with a server.
        on_progress: Called after each batch and each window.
        on_stopped: Called with what was done, before an error or an interruption that ends the run is raised.

    Raises:
        InputError: The corpus or a setting is wrong, or a sync would delete too much.
        ContractError: The collection belongs to another model; nothing was written.
        QdrantError: Qdrant refused or could not be reached; what was stored stays, and another run goes on from there.
        EncodingError: The encoder gave no usable vector.
        MissingExtra: Documents cannot be encoded in this installation; nothing was written.
    """
    settings = settings or IngestSettings()
    target = Collection(client, collection, retries, shard_key=settings.shard_key)
    if target.is_embedded and settings.shard_key is not None:
        raise InputError("--shard-key needs a server: the embedded database has no shards")
    if target.is_embedded and settings.indexes:
        logger.warning("--index has no effect here: the embedded database filters without indexes")
    target = target.sibling(target.aliases().get(collection, collection))
    shard = (settings.shard.number, settings.shard.of)
    with open_source(corpus, reading or Reading(), shard, dry_run=settings.dry_run) as source, Seen() as seen:
        rows: Iterator[Document | Reject] = islice(source.rows, settings.limit)
        vectors = join_collection(target, vector_name or model.name, model.contract(), sparse=settings.sparse)
        is_new = vectors is None
        if vectors is None:
            rows = require_document(rows, collection)
            sparse, rows = sparse_contract(rows) if settings.sparse else (None, rows)
            vectors = PointVectors(vector_name or model.name, model.contract(), sparse)
        else:
            _refuse_version(target)
        if is_new and not settings.dry_run:
            model.require_documents()
            joined = create_collection(target, vectors, storage or Storage(), bulk_load=settings.shard.of == 1)
            vectors, is_new = joined or vectors, joined is None
        if not (is_new and settings.dry_run):
            there = join_shard_key(target, storage or Storage(), is_new=is_new, dry_run=settings.dry_run)
            is_new = is_new or not there
        if not settings.dry_run:
            target.create_indexes(index_schemas(settings.indexes))
        guard = RunGuard(target, vectors, settings)
        run = _Run(target, model, vectors, settings, is_new, seen, guard, on_progress)
        return run.go(replace(source, rows=rows), on_stopped)


@contextmanager
def _untraced_heap() -> Iterator[None]:
    """Keep what is in memory now, as modules and the model, out of garbage collections until the end of the block.

    Else each of the many collections of an ingestion walks through all of it, which took a fifth of the CPU time.
    """
    if gc.get_freeze_count():  # by the program around, which would not expect an unfreeze
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _refuse_version(collection: Collection) -> None:
    """Refuse what ``care publish`` made, while its source is there: the next version would lose what is written."""
    record = version_record(collection.schema)
    if record is not None and record.adds is None and collection.sibling(record.source).exists():
        raise InputError(
            f"{collection.name!r} is a version that care publish made of {record.source!r}, and the next one will not "
            f"have what is written here: ingest into {record.source!r}, and publish it"
        )


@dataclass(slots=True)
class _Run:
    """One ingestion."""

    collection: Collection
    model: DocumentModel
    vectors: PointVectors
    settings: IngestSettings
    is_new: bool
    seen: Seen
    guard: RunGuard
    on_progress: Callable[[Progress], None]
    tally: Tally = field(default_factory=Tally)
    watch: Stopwatch = field(default_factory=Stopwatch)
    sender: Sender | None = None

    def go(self, source: Source, on_stopped: Callable[[IngestReport], None]) -> IngestReport:
        """Read, encode and write, then delete, count and report."""
        start = time.perf_counter()
        try:
            with _untraced_heap():
                expected, points = self._do(source)
        except (CareError, KeyboardInterrupt) as error:
            stored = self._stored() + self.tally.unchanged
            report = self._report(source.rejects, stored, time.perf_counter() - start, None)
            on_stopped(replace(report, stopped=str(error) or "interrupted"))
            raise
        return self._report(source.rejects, points, time.perf_counter() - start, expected)

    def _do(self, source: Source) -> tuple[Estimate | None, int]:
        expected = None
        before = self._prepare()
        with closing(read_ahead(self._reader(source).plans(source.rows, source.share_read), WINDOWS_AHEAD)) as plans:
            noted = map(self._note, plans)
            if self.settings.dry_run:
                price = self.settings.price_per_hour
                expected = estimate(noted, self.tally, self.vectors, lambda: self.model.document_encoder, price)
            else:
                self._write(noted)
        self._sync()
        return expected, self._finish(before)

    def _prepare(self) -> int:
        """Repair the hashes of a collection that is there; return the number of its points."""
        if self.is_new:
            return 0
        if not self.settings.dry_run:
            remove_orphaned_hashes(self.collection, self.vectors.vector_name)
        return self.collection.count()

    def _reader(self, source: Source) -> Reader:
        return Reader(
            collection=self.collection,
            vectors=self.vectors,
            counter=lambda: self.model.document_tokenizer,
            overflow=self.settings.overflow,
            shard=self.settings.shard,
            is_new=self.is_new,
            has_others=not self.is_new and has_other_writers(self.collection),
            seen=self.seen,
            tally=self.tally,
            on_reject=source.rejects.write if source.rejects is not None else lambda _: None,
        )

    def _note(self, plan: Plan) -> Plan:
        self.tally.documents += plan.documents
        self.tally.unchanged += plan.unchanged
        self.tally.planned += plan.unchanged + len(plan.encode) + len(plan.update)
        self.tally.planned_tokens += sum(task.chunk.tokens for task in plan.encode)
        self.tally.other_points += len(plan.others)
        if self.settings.replace_others and self.settings.dry_run:
            self.tally.deleted += len(plan.others)
        self._show(plan)
        return plan

    def _show(self, plan: Plan) -> None:
        speed = self.tally.tokens / self.watch.total_seconds if self.tally.tokens else 0.0
        limit = self.settings.limit and self.settings.limit / self.settings.shard.of
        self.on_progress(self.tally.progress(self._stored(), speed, plan.share_read, limit))

    def _stored(self) -> int:
        return self.sender.stored if self.sender is not None else 0

    def _write(self, plans: Iterable[Plan]) -> None:
        tune_embedded(self.collection.client, self.collection.name)
        limits = self.collection.limits
        if self.settings.grpc and not self.collection.is_embedded and not self.collection.upsert_over_grpc():
            logger.info("%s: points are written over HTTP, since no gRPC port reaches it", self.collection.name)
        plan = None
        with Sender(self.collection) as sender:
            self.sender = sender
            for plan in plans:
                self.guard.check()
                if plan.encode:
                    self.model.require_documents()
                if plan.is_work:
                    self.guard.begin()
                self._settle_others(plan)
                # Before the chunks that say how many there are: a run that is killed in between finds them again.
                self.collection.delete(plan.surplus)
                self.tally.deleted += len(plan.surplus)
                if plan.update:
                    sender.submit(partial(self._requests, plan.update, None, limits))
                    self.tally.updated += len(plan.update)
                if plan.encode:
                    self._encode(plan, sender, limits)
        if plan is not None:
            self._show(plan)

    def _settle_others(self, plan: Plan) -> None:
        """Delete the points that another writer made of documents of this plan, if that was asked for."""
        if self.settings.replace_others:
            self.collection.delete(plan.others)
            self.tally.deleted += len(plan.others)

    def _encode(self, plan: Plan, sender: Sender, limits: Limits) -> None:
        encoder = self.model.document_encoder
        for batch in token_batches([task.chunk.tokens for task in plan.encode], self.settings.batch_tokens):
            tasks = [plan.encode[index] for index in batch]
            with self.watch.running():
                vectors = encoder.encode([task.chunk.embedded_text for task in tasks])
            check_vectors(vectors, tasks, self.vectors.dense.dim)
            sender.submit(partial(self._requests, tasks, vectors, limits))
            self.tally.encoded += len(tasks)
            self.tally.inserted += sum(task.stored is None for task in tasks)
            self.tally.tokens += sum(task.chunk.tokens for task in tasks)
            self._show(plan)

    def _requests(self, tasks: Sequence[Task], vectors: Vectors | None, limits: Limits) -> Iterator[Write]:
        """Build points; called in a sender's thread, so that the encoder does not wait for it."""
        for start in range(0, len(tasks), limits.write):
            page = tasks[start : start + limits.write]
            rows = [None] * len(page) if vectors is None else vectors[start : start + limits.write]
            points = [task.point(self.vectors, row) for task, row in zip(page, rows, strict=True)]
            new = [point for task, point in zip(page, points, strict=True) if task.stored is None]
            stored = [point for task, point in zip(page, points, strict=True) if task.stored is not None]
            yield from in_requests(Insert(new), self.vectors.dense.dim, limits.write)
            yield from in_requests(Change(stored), self.vectors.dense.dim, limits.write)

    def _sync(self) -> None:
        settings = self.settings
        if not settings.dry_run:
            self.guard.check()
            if self.guard.may_have_surplus:
                self.tally.deleted += delete_surplus_chunks(self.collection, self.seen, in_shard=settings.shard.has)
        if not settings.sync or (settings.dry_run and self.is_new):
            return
        if self.tally.rejected and not settings.sync_despite_rejects:
            raise InputError(
                f"rejected rows: {self.tally.rejected:,}, and each may be a document that is stored. The others are "
                "stored, and nothing was deleted. Mend the corpus, or give --sync-despite-rejects"
            )
        self.tally.deleted += delete_missing(
            self.collection,
            self.seen,
            in_shard=settings.shard.has,
            max_fraction=settings.max_delete_fraction,
            dry_run=settings.dry_run,
        )

    def _finish(self, before: int) -> int:
        """Count exactly, and return the number of points that carry the vector.

        Raises:
            QdrantError: There are fewer points than were acknowledged.
        """
        if self.settings.dry_run and self.is_new:
            return 0
        points = self.collection.count_with_vector(self.vectors.vector_name)
        if self.settings.dry_run:
            return points
        finish_load(self.collection)
        record_rescoring(self.collection, self.vectors.vector_name)
        self.guard.end()
        # Other shards of the corpus may be written, and synchronised, at the same time.
        lowest = before + self.tally.inserted - self.tally.deleted if self.settings.shard.of == 1 else 0
        if points < self.tally.chunks or self.collection.count() < lowest:
            raise QdrantError(
                f"collection {self.collection.name!r}: {self.tally.chunks:,} points were acknowledged, and {points:,} "
                f"carry vector {self.vectors.vector_name!r}: some were lost. Run the same command again"
            )
        return points

    def _report(
        self, rejects: RejectsFile | None, points: int, seconds: float, expected: Estimate | None
    ) -> IngestReport:
        tally, watch = self.tally, self.watch
        return IngestReport(
            documents=tally.documents,
            chunks=tally.chunks,
            encoded=tally.encoded,
            updated=tally.updated,
            unchanged=tally.unchanged,
            duplicates=tally.duplicates,
            rejected=tally.rejected,
            deleted=tally.deleted,
            other_points=tally.other_points,
            points=points,
            tokens=tally.tokens,
            seconds=round(seconds, 3),
            documents_per_second=round(tally.documents / seconds, 1) if seconds else 0.0,
            tokens_per_second=round(tally.tokens / watch.total_seconds, 1) if tally.tokens else 0.0,
            encoder_idle_fraction=round(watch.idle_fraction, 4),
            collection=self.collection.name,
            vector_name=self.vectors.vector_name,
            fingerprint=self.vectors.dense.fingerprint,
            rejects_file=str(rejects.path) if rejects is not None and tally.rejected else None,
            estimate=expected,
            first_rejects=tuple(tally.first_rejects),
        )
