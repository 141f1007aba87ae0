"""Ingests a corpus into a collection: reads it, skips stored chunks, encodes the rest in batches, writes and counts.

The loop itself is `care_qdrant.ingestion.pipeline`; this module does the work before, between and after its windows.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from care_qdrant.contracts.stand_in import stand_in_metadata
from care_qdrant.corpus.chunking import cut_documents
from care_qdrant.corpus.files import CorpusPath
from care_qdrant.corpus.rejects import RejectsFile
from care_qdrant.corpus.rows import Reject
from care_qdrant.encoders.ahead import Meter, meter_of, report_of
from care_qdrant.errors import CareError, InputError, QdrantError, Unreachable, counted
from care_qdrant.ingestion.diff import (
    ChunkTask,
    Diff,
    NeedsVector,
    delete_others,
    has_other_writers,
    has_terms,
    orphaned,
    remove_orphaned_hashes,
)
from care_qdrant.ingestion.dry_run import estimate
from care_qdrant.ingestion.pipeline import (
    WINDOWS_AHEAD,
    Worker,
    brought_vectors,
    document_vectors,
    read_ahead,
    require_encoder,
)
from care_qdrant.ingestion.rows import (
    CutDocument,
    Reader,
    Reading,
    Row,
    Source,
    open_source,
    require_document,
    require_readable,
    sparse_contract,
)
from care_qdrant.ingestion.run_entry import RunEntry
from care_qdrant.ingestion.seen import Seen, Stale, count_stale, delete_stale
from care_qdrant.ingestion.settings import DocumentModel, IngestReport, IngestSettings, name_of_vector
from care_qdrant.model.care_model import CareModel
from care_qdrant.progress import Progress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import (
    SPARSE_VECTOR_NAME,
    PointVectors,
    Storage,
    create_collection,
    finish_load,
    index_schemas,
    join_collection,
    join_shard_key,
)
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.readable import PointId
from care_qdrant.search.tuning import record_rescoring
from care_qdrant.types import Document, point_id

logger = logging.getLogger(__name__)


@accepts_client
def ingest(
    corpus: CorpusPath | Iterable[Document],
    model: DocumentModel,
    collection: Collection,
    *,
    vector_name: str | None = None,
    settings: IngestSettings | None = None,
    storage: Storage | None = None,
    reading: Reading | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_stopped: Callable[[IngestReport], None] = lambda _: None,
) -> IngestReport:
    """Ingest a corpus into a named vector of a collection, which is created if it does not exist.

    Args:
        corpus: Files (see `Corpus`), whose rejected rows go to a file next to them; or documents.
        model: The model; its document encoder is loaded only if something has to be encoded.
        collection: An open Qdrant and a name: the collection, or an alias of it. With a shard key, only its shards.
        vector_name: None takes the model's name.
        settings: Treatment of the documents.
        storage: Storage of the vectors of a new collection.
        reading: Fields and encoding of the files.
        on_progress: Called after each batch and each window.
        on_stopped: Called with what was done, before an error or an interruption that ends the run is raised.

    Raises:
        InputError: The corpus or a setting is wrong, or a sync would delete too much.
        ContractError: The collection belongs to another model; nothing was written.
        QdrantError: Qdrant refused or could not be reached; stored points stay, and another run continues from there.
        EncodingError: The encoder returned no usable vector.
        MissingExtra: Documents cannot be encoded in this installation; nothing was written.
    """
    settings, name = settings or IngestSettings(), name_of_vector(vector_name, model)
    start, target = time.perf_counter(), _target(collection, settings)
    shard = (settings.shard.number, settings.shard.of)
    run: _Run | None = None
    try:
        with (
            open_source(corpus, reading or Reading(), collection.name, shard, dry_run=settings.dry_run) as source,
            Seen() as seen,
        ):
            if settings.stand_in:
                model = _standing_in(model, target)
            vectors, is_new, rows = _joined(source, model, target, vector_name, settings, storage or Storage())
            entry = RunEntry(target, vectors, settings, source.inputs, source.files, lambda id_: bool(seen.chunks(id_)))
            run = _Run(target, model, vectors, settings, is_new, seen, entry, on_progress)
            return run.go(replace(source, rows=rows), on_stopped)
    except KeyboardInterrupt:
        if run is None:  # it was waiting for the first rows of an idle pipe
            made_by, seconds = model.contract().fingerprint, round(time.perf_counter() - start, 3)
            nothing = IngestReport(collection=target.name, vector_name=name, fingerprint=made_by, seconds=seconds)
            on_stopped(replace(nothing, stopped="interrupted"))
        raise


def _standing_in(model: DocumentModel, collection: Collection) -> DocumentModel:
    """Return a learned model whose query encoder also encodes documents, for an existing collection."""
    if not isinstance(model, CareModel):
        raise InputError(f"--stand-in: model {model.name!r} was not learned from a collection; leave the option out")
    if not collection.exists():
        raise InputError(
            f"--stand-in: there is no collection {collection.name!r}, and so no vectors to which documents could be "
            "added; give the collection that the encoder was learned from, with --collection"
        )
    return model.standing_in()


def _joined(
    source: Source,
    model: DocumentModel,
    target: Collection,
    given: str | None,
    settings: IngestSettings,
    storage: Storage,
) -> tuple[PointVectors, bool, Iterator[Row]]:
    """Join the collection, or create it for the first rows; return its vectors, whether it is new, and all rows."""
    name = name_of_vector(given, model)
    rows: Iterator[Row] = islice(source.rows, settings.limit)
    vectors = join_collection(
        target,
        name,
        model.contract(),
        sparse=settings.sparse is True,
        bm25_language=settings.bm25_language,
        is_named=given is not None,
        stands_in=settings.stand_in,
    )
    is_new = vectors is None
    if vectors is None:
        rows = require_document(rows, target.name)
        if not settings.any_language:
            rows = require_readable(rows, model)
        sparse, rows = (None, rows) if settings.sparse is False else sparse_contract(rows, settings.bm25_language)
        vectors = PointVectors(name, model.contract(), sparse)
    else:
        _refuse_version(target)
    if is_new and not settings.dry_run:
        require_encoder(model)
        joined = create_collection(target, vectors, storage, defer_graph=settings.shard.of == 1)
        vectors, is_new = joined or vectors, joined is None
    if not (is_new and settings.dry_run):
        there = join_shard_key(target, storage, is_new=is_new, dry_run=settings.dry_run)
        is_new = is_new or not there
    if not settings.dry_run:
        target.create_indexes(index_schemas(settings.indexes))
    return vectors, is_new, rows


def ingest_encoded(
    documents: Iterable[CutDocument],
    vectors: PointVectors,
    collection: Collection,
    *,
    settings: IngestSettings,
    storage: Storage | None = None,
    inputs: Sequence[str] = (),
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> IngestReport:
    """Ingest documents that are already cut and encoded into a collection, otherwise like `ingest`.

    Args:
        documents: The chunks of each document, each with its vector; read by a separate thread.
        vectors: The contract of the vectors. An existing collection keeps its own BM25, or has none.
        collection: The collection; created if it does not exist, without a search graph until its load is finished.
        settings: Treatment of the documents.
        storage: Storage of the vectors of a new collection.
        inputs: Files and folders that the documents come from.
        on_progress: Called after each batch and each window.

    Raises:
        ContractError: The collection belongs to another model; nothing was written.
        QdrantError: Qdrant refused or could not be reached; stored points stay, and another run continues from there.
    """
    target = _target(collection, settings)
    joined = join_collection(target, vectors.vector_name, vectors.dense, sparse=False)  # it keeps what it has
    if joined is not None:
        _refuse_version(target)
    else:
        joined = create_collection(target, vectors, storage or Storage(), defer_graph=True)
    # Documents are also compared with a new collection: another loader may write to it from now on.
    join_shard_key(target, storage or Storage(), is_new=joined is None, dry_run=False)
    vectors = joined or vectors
    target.create_indexes(index_schemas(settings.indexes))
    with Seen() as seen:
        entry = RunEntry(target, vectors, settings, inputs)
        run = _Run(target, None, vectors, settings, False, seen, entry, on_progress)
        return run.go(Source(iter(documents)), lambda _: None)


def _target(collection: Collection, settings: IngestSettings) -> Collection:
    """Return the collection behind a name or an alias, which need not exist yet."""
    if collection.is_embedded and collection.shard_key is not None:
        raise InputError("--shard-key needs a server: the embedded database has no shards")
    if collection.is_embedded and any(kind != "tenant" for kind in settings.indexes.values()):
        logger.warning("--index has no effect here: the embedded database filters without indexes")
    return collection.sibling(collection.aliases().get(collection.name, collection.name))


@contextmanager
def _untraced_heap() -> Iterator[None]:
    """Exclude objects that exist now, such as modules and the model, from garbage collection during the block.

    Otherwise each of the many collections of an ingestion walks through all of them, which took a fifth of the CPU
    time.
    """
    if gc.get_freeze_count():  # by the calling program, which would not expect an unfreeze
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _refuse_version(collection: Collection) -> None:
    """Refuse a version that ``care publish`` made, while its source exists: the next version would lose the writes."""
    record = collection.schema.version_record
    if record is not None and collection.sibling(record.source).exists():
        raise InputError(
            f"{collection.name!r} is a version that care publish made of {record.source!r}, and the next one will not "
            f"have what is written here: ingest into {record.source!r}, and publish it"
        )


@dataclass(slots=True)
class _Run:
    """State of an ingestion while it runs."""

    collection: Collection
    model: DocumentModel | None
    """Model that cuts and encodes the documents; None where they are already cut and encoded."""
    vectors: PointVectors
    settings: IngestSettings
    is_new: bool
    seen: Seen
    entry: RunEntry
    on_progress: Callable[[Progress], None]
    report: IngestReport = field(init=False)
    compared: int = 0
    """Chunks that were read and compared."""
    compared_tokens: int = 0
    """Tokens of the compared chunks that are to be encoded."""
    inserted: int = 0
    """Points that did not exist before."""
    surplus: int = 0
    """Chunks beyond the end of a document that became shorter."""
    orphans: dict[str, set[PointId]] = field(default_factory=dict)
    """Points of a dry run whose hashes the real one would remove, since they lack the vector."""
    kept: int | None = None
    """Points of the run's documents, where they were counted after its last write."""
    withdrawn: int = 0
    """Chunks of documents that were rejected for another chunk of theirs."""
    last: Diff | None = None
    worker: Worker[ChunkTask] = field(init=False)

    def __post_init__(self) -> None:
        name, fingerprint, dim = self.vectors.vector_name, self.vectors.dense.fingerprint, self.vectors.dense.dim
        self.report = IngestReport(collection=self.collection.name, vector_name=name, fingerprint=fingerprint)
        self.worker = Worker(
            brought_vectors(dim) if self.model is None else document_vectors(self.model, dim),
            lambda task, row: task.point(self.vectors, row),
            self.settings.batch_tokens,
            (name,) if self.vectors.sparse is None else (name, SPARSE_VECTOR_NAME),
            failed=[],
        )

    @property
    def meter(self) -> Meter:
        """Meter of the encoder's device if it has one, otherwise of its calls."""
        own = self.worker.meter
        if self.model is None or self.settings.dry_run or not own.tokens:
            return own
        return meter_of(self.model.document_encoder, own)

    def go(self, source: Source, on_stopped: Callable[[IngestReport], None]) -> IngestReport:
        """Read, encode and write, then delete, count and report."""
        start, report = time.perf_counter(), self.report
        try:
            with _untraced_heap():
                report.points = self._do(source)
        except (CareError, KeyboardInterrupt) as error:
            is_lost = not isinstance(error, KeyboardInterrupt | Unreachable) and self.entry.is_lost()
            report.points = 0 if is_lost else self.worker.stored + report.unchanged
            self._close(source.rejects, time.perf_counter() - start)
            on_stopped(replace(report, stopped=str(error) or "interrupted"))
            raise
        self._close(source.rejects, time.perf_counter() - start)
        return report

    def _do(self, source: Source) -> int:
        before = self._prepare()
        reader = self._reader(source)
        diffs = reader.diffs(source.rows, source.share_read)
        if self.settings.dry_run:
            model = self._model
            with closing(read_ahead(diffs, WINDOWS_AHEAD)) as ahead:
                noted = map(self._note, ahead)
                load, batch_tokens = lambda: model.document_encoder, self.settings.batch_tokens
                self.report.estimate = estimate(noted, self.report, self.worker.maker, load, batch_tokens)
        else:
            self._write(diffs)
            self._reject_failed(reader.reject)
            if self.settings.replace_others and self.report.other_points:
                self.entry.check()
                self.report.deleted += delete_others(self.collection, self.entry.holds)
        refusal = self._tidy(source.changed)
        points = self._finish(before)
        if refusal is not None:
            raise refusal
        return points

    def _prepare(self) -> int:
        """Remove orphaned hashes from an existing collection, or note them; return the number of its points."""
        if self.is_new:
            return 0
        needs: dict[str, NeedsVector | None] = {self.vectors.vector_name: None}
        if self.vectors.sparse is not None:
            needs[SPARSE_VECTOR_NAME] = partial(has_terms, self.vectors.sparse)
        for name, needs_vector in needs.items():
            if self.settings.dry_run:
                self.orphans[name] = {id_ for _, ids in orphaned(self.collection, name, needs_vector) for id_ in ids}
            else:
                remove_orphaned_hashes(self.collection, name, needs_vector)
        return self.collection.count()

    def _reader(self, source: Source) -> Reader:
        return Reader(
            collection=self.collection,
            vectors=self.vectors,
            cut=lambda documents: cut_documents(documents, self._model.document_tokenizer, self.settings.overflow),
            shard=self.settings.shard,
            is_new=self.is_new,
            has_others=not self.is_new and has_other_writers(self.collection),
            seen=self.seen,
            report=self.report,
            orphans=self.orphans,
            on_reject=source.rejects.write if source.rejects is not None else lambda _: None,
        )

    def _note(self, diff: Diff) -> Diff:
        self.report.documents += diff.documents
        self.report.unchanged += diff.unchanged
        self.compared += diff.unchanged + len(diff.encode) + len(diff.update)
        self.compared_tokens += sum(task.chunk.tokens for task in diff.encode)
        self.report.other_points += diff.others
        self.report.deleted += len(diff.surplus)
        if self.settings.dry_run and self.settings.replace_others:
            self.report.deleted += diff.others
        self.surplus += len(diff.surplus)
        self.inserted += sum(task.stored is None for task in (*diff.encode, *diff.update))
        self.last = diff
        self._show(diff)
        return diff

    def _show(self, diff: Diff) -> None:
        report, settings, meter = self.report, self.settings, self.worker.meter
        expected = report.documents / diff.share_read if diff.share_read else None
        limit = settings.limit and settings.limit / settings.shard.of
        expected = min(filter(None, (expected, limit)), default=None)
        total = left = None
        if expected and self.compared:
            total = max(self.compared, round(self.compared * expected / report.documents))
            if meter.tokens_per_second:
                tokens = self.compared_tokens * total / self.compared - report.tokens
                left = max(0.0, tokens / meter.tokens_per_second)
        texts_per_second = meter.texts / meter.total_seconds if meter.total_seconds else 0.0
        self.on_progress(
            Progress(
                documents=report.documents,
                stored=self.compared if settings.dry_run else self.worker.stored + report.unchanged,
                encoded=report.encoded,
                rejected=report.rejected,
                tokens_per_second=meter.tokens_per_second,
                documents_per_second=texts_per_second * report.documents / max(self.compared, 1),
                padding=meter.padding,
                idle_fraction=self.meter.idle_fraction,
                total=total,
                seconds_left=left,
                share_read=diff.share_read,
            )
        )

    def _write(self, diffs: Iterator[Diff]) -> None:
        self.worker.run(diffs, self.collection, self._begin, self._note_batch)
        if self.last is not None:
            self._show(self.last)

    def _begin(self, diff: Diff) -> None:
        """Check the collection, and delete the points that the documents of a window no longer have."""
        self._note(diff)
        self.entry.check()
        if diff.encode and self.model is not None:
            require_encoder(self.model)
        if diff.encode or diff.update or diff.surplus:
            self.entry.begin()
        # Surplus chunks are deleted before the chunks that hold their number are rewritten: after a kill in between,
        # the next run finds them again.
        self.collection.delete(diff.surplus)
        self.report.updated += len(diff.update)

    def _reject_failed(self, reject: Callable[[Reject], None]) -> None:
        """Reject the documents of which a chunk has no vector, and delete the other chunks, which would look whole."""
        failed = self.worker.failed or []
        documents = {task.chunk.document.id: (task.chunk, reason) for _, task, reason in failed}
        for chunk, reason in documents.values():
            reject(Reject.of(chunk.document, reason))
        # Of a document that became shorter, only the first chunks are left.
        sizes = {
            task.chunk.document.id: max(task.chunk.total, task.stored.chunks if task.stored else 0)
            for _, task, _ in failed
        }
        cut = [point_id(document_id, at) for document_id, size in sizes.items() if size > 1 for at in range(size)]
        stored = [*self.collection.retrieve(cut, "reading rejected documents", payload=False)] if cut else []
        self.collection.delete(stored)
        self.seen.set_chunks(dict.fromkeys(documents, 0))
        self.report.documents -= len(documents)
        self.report.deleted += len(stored)
        self.inserted -= sum(task.stored is None for _, task, _ in failed)
        self.withdrawn = sum(chunk.total for chunk, _ in documents.values()) - len(failed)

    def _note_batch(self, diff: Diff, tasks: Sequence[ChunkTask]) -> None:
        self.report.encoded += len(tasks)
        self.report.tokens += sum(task.tokens for task in tasks)
        self._show(diff)

    def _tidy(self, changed: Sequence[str]) -> InputError | None:
        """Delete points that the corpus no longer has, or count them in a dry run; return why a sync deletes nothing.

        A refused sync is an error of a run that has stored its corpus.
        """
        settings, is_dry = self.settings, self.settings.dry_run
        if not (is_dry and self.is_new):  # otherwise it may not exist
            self.entry.check()
        refusal = self._refusal(changed) if settings.sync else None
        if is_dry and self.is_new:
            return refusal
        has_sync = settings.sync and refusal is None
        if not (has_sync or self.entry.may_have_surplus):
            return refusal
        in_shard = settings.shard.has
        stale = count_stale(self.collection, self.seen, in_shard=in_shard)
        self.kept = stale.kept
        if is_dry:  # by now, a real run would have deleted the surplus and inserted the new points
            stale.surplus -= self.surplus
            stale.kept += self.inserted
        if stale.surplus and not is_dry:
            stale.surplus = delete_stale(self.collection, self.seen, "surplus", in_shard=in_shard)
        self.report.deleted += stale.surplus
        if not has_sync:
            return refusal
        if (refusal := self._of_others(stale)) is not None:
            return refusal
        if stale.missing > settings.max_delete_fraction * (stale.kept + stale.missing):
            return self._too_many(stale)
        if stale.missing and not is_dry:
            stale.missing = delete_stale(self.collection, self.seen, "missing", in_shard=in_shard)
        self.report.deleted += stale.missing
        self.report.first_deleted = stale.examples
        self.entry.has_synced = True
        return None

    def _refusal(self, changed: Sequence[str]) -> InputError | None:
        """Return why the missing documents are not known; None where they are."""
        done = "This was a dry run" if self.settings.dry_run else "The others are stored"
        if changed:
            return InputError(
                f"{changed[0]}: was written to while it was read, so documents that are stored may be missing. {done}, "
                "and nothing was deleted. Run the same command again when nothing writes to it"
            )
        if self.report.rejected and not self.settings.sync_despite_rejects:
            return InputError(
                f"rejected rows: {self.report.rejected:,} ({'; '.join(self.report.first_rejects)}), and each may be a "
                f"document that is stored. {done}, and nothing was deleted. Fix those rows, or give "
                "--sync-despite-rejects"
            )
        return None

    def _of_others(self, stale: Stale) -> InputError | None:
        """Return why missing documents may be of files that this run does not read; None where they cannot be."""
        others = self.entry.other_inputs()
        if not (stale.missing and others) or self.settings.sync_other_files:
            return None
        done = "This was a dry run" if self.settings.dry_run else "The corpus is stored"
        return InputError(
            f"collection {self.collection.name!r} also has documents of {others[0]}"
            f"{f' and {len(others) - 1:,} more' if len(others) > 1 else ''}, which this run does not read. {done}, "
            "and nothing was deleted. Give all files or folders in one command, or, to delete the documents of "
            "the others, --sync-other-files"
        )

    def _too_many(self, stale: Stale) -> InputError:
        missing, stored = stale.missing, stale.kept + stale.missing
        done = "this was a dry run" if self.settings.dry_run else "the corpus is stored"
        return InputError(
            f"collection {self.collection.name!r}: {counted(missing, 'point', of=stored)} ({missing / stored:.0%}), of "
            f"documents such as {', '.join(stale.examples)}, {'is' if missing == 1 else 'are'} not in the corpus, more "
            f"than the {self.settings.max_delete_fraction:.0%} that --sync may delete; {done}, and nothing was "
            "deleted. If the corpus is complete, give a larger --max-delete-fraction"
        )

    def _finish(self, before: int) -> int:
        """Count exactly, and return the number of points that carry the vector."""
        if self.settings.dry_run and self.is_new:
            return 0
        points = self.collection.count_with_vector(self.vectors.vector_name)
        if self.settings.dry_run:
            return points
        # Another run at the same time inserts and deletes points, too.
        is_alone = self.settings.shard.of == 1 and not self.entry.may_have_surplus
        lowest = before + self.inserted - self.report.deleted if is_alone else 0
        # Points of other documents may hide that some are missing.
        if (kept := points if self.kept is None else min(points, self.kept)) < self._chunks:
            raise QdrantError(
                f"collection {self.collection.name!r}: {counted(self._chunks, 'point', 'were')} acknowledged, and "
                f"{kept:,} carry vector {self.vectors.vector_name!r}: some were lost. Run the same command again"
            )
        if (there := self.collection.count()) < lowest:
            raise QdrantError(
                f"collection {self.collection.name!r}: has {counted(there, 'point')}, and with those of this run it "
                f"should have {lowest:,}: some were lost, or another program deleted them. Run the same command again"
            )
        if self.settings.finish:
            finish_load(self.collection)
            record_rescoring(self.collection, self.vectors.vector_name)
        self.report.stand_ins = self._count_stand_ins()
        if self.report.encoded:
            schema = self.collection.schema
            self.report.other_vectors = sorted({*schema.dense, *schema.sparse} - {*self.worker.names})
        self.entry.end()
        return points

    def _count_stand_ins(self) -> int:
        """Return the number of points of learned encoders; remove the record of these encoders if none are left."""
        name, entry = self.vectors.vector_name, self.entry
        points = self.collection.count_stand_ins(name)
        # A concurrent run may have written its record, and not its points yet.
        is_alone = not (entry.may_have_surplus or entry.cannot_note)
        if points == 0 and name in self.collection.schema.stand_ins and is_alone:
            self.collection.update("removing the record of stand-ins", metadata=stand_in_metadata(name, None))
        return points or 0

    def _close(self, rejects: RejectsFile | None, seconds: float) -> None:
        """Fill in the figures of the report that are known only at the end."""
        report = self.report
        report.chunks = self._chunks
        report.seconds = round(seconds, 3)
        report.documents_per_second = round(report.documents / seconds, 1) if seconds else 0.0
        report.tokens_per_second = round(self.worker.meter.tokens_per_second, 1)
        report.encoder_idle_fraction = round(self.meter.idle_fraction, 4)
        report.rejects_file = str(rejects.path) if rejects is not None and report.rejected else None
        # Documents that a program passes have no rejects file.
        if report.rejected and rejects is None and not self.settings.dry_run:
            logger.warning(
                "collection %r: %s rejected, so not stored as given: %s",
                report.collection,
                counted(report.rejected, "document", "were"),
                "; ".join(report.first_rejects),
            )
        if report.encoded and self.model is not None and not self.settings.dry_run:
            report.engine = report_of(self.model.document_encoder)

    @property
    def _model(self) -> DocumentModel:
        """The model of a run that cuts and encodes its documents."""
        assert self.model is not None
        return self.model

    @property
    def _chunks(self) -> int:
        return self.report.encoded + self.report.updated + self.report.unchanged - self.withdrawn
