"""Corpus to collection: read, skip what is stored, encode the rest in full batches, write, count.

Three things run at once: a reader that cuts and compares a few windows ahead, the encoder, and the sender threads
behind it. The hashes in the stored payloads are the only checkpoint: a killed run is finished by running it again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path

from qdrant_client import QdrantClient, models

from care_qdrant.corpus.files import Corpus, RejectsFile, rejects_path
from care_qdrant.corpus.rows import Fields, Reject, Row, check_document
from care_qdrant.corpus.seen import Seen
from care_qdrant.encoders import bm25
from care_qdrant.encoders.batching import token_batches
from care_qdrant.errors import InputError, QdrantError
from care_qdrant.ingestion.ahead import read_ahead
from care_qdrant.ingestion.dry_run import estimate
from care_qdrant.ingestion.plan import Plan, Task, check_vectors, pages
from care_qdrant.ingestion.reading import WINDOW_DOCUMENTS, Reader
from care_qdrant.ingestion.report import Estimate, IngestReport, Progress, Stopwatch, Tally
from care_qdrant.ingestion.settings import DocumentModel, IngestSettings
from care_qdrant.ingestion.sync import delete_missing
from care_qdrant.ingestion.vector_hashes import drop_false_claims
from care_qdrant.publishing.versions import read_mark
from care_qdrant.store.connection import tune_embedded
from care_qdrant.store.contracts import SparseContract
from care_qdrant.store.create import Schema, Storage, create_collection, finish_load, join_collection
from care_qdrant.store.limits import Limits, read_limits
from care_qdrant.store.points import delete_points
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.store.sender import Change, Insert, Sender, Write, in_requests
from care_qdrant.types import Document, Vectors, embedded_text

WINDOWS_AHEAD = 2
FIRST_ROWS = 100
"""Of a file, looked at before a collection is created."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows to read, wherever they come from."""

    rows: Iterator[Row | Reject]
    share_read: Callable[[], float | None] = lambda: None
    rejects: RejectsFile | None = None


def ingest(
    corpus: str | Path | Iterable[Document],
    model: DocumentModel,
    client: QdrantClient,
    collection: str,
    *,
    vector_name: str | None = None,
    settings: IngestSettings | None = None,
    storage: Storage | None = None,
    fields: Fields | None = None,
    retries: RetryPolicy | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> IngestReport:
    """Put a corpus into a named vector of a collection, which is created where it is not there.

    Args:
        corpus: A file (see `Corpus`), whose rejected rows go to a file beside it; or documents.
        model: The pair; its document encoder is loaded only if something has to be encoded.
        client: An open Qdrant.
        collection: Its name.
        vector_name: None takes the model's name.
        settings: What to do with the corpus.
        storage: How a new collection holds its vectors.
        fields: Names of the parts of a row in a file.
        retries: How patient to be with a server.
        on_progress: Called after each batch and each window.

    Raises:
        InputError: the corpus or a setting is wrong, or a sync would delete too much.
        ContractError: the collection belongs to another model; nothing was written.
        QdrantError: Qdrant refused or could not be reached; what was stored stays, and another run goes on from there.
        EncodingError: the encoder gave no usable vector.
    """
    settings = settings or IngestSettings()
    link = Collection(client, collection, retries)
    with _open(corpus, fields or Fields()) as source, Seen() as seen:
        rows: Iterator[Row | Reject] = islice(source.rows, settings.limit)
        schema = join_collection(link, vector_name or model.name, model.contract(), sparse=settings.sparse)
        is_new = schema is None
        if schema is None:
            rows = _not_empty(rows, collection)
            sparse, rows = _sparse_contract(rows) if settings.sparse else (None, rows)
            schema = Schema(vector_name or model.name, model.contract(), sparse)
        else:
            _refuse_version(link)
        if is_new and not settings.dry_run:
            joined = create_collection(link, schema, storage or Storage(), bulk_load=settings.shard.of == 1)
            schema, is_new = joined or schema, joined is None
        run = _Run(link, model, schema, settings, is_new, seen, on_progress)
        return run.go(_Source(rows, source.share_read, source.rejects))


def _refuse_version(link: Collection) -> None:
    """Refuse what ``care publish`` made, while its source is there: the next version would lose what is written."""
    mark = read_mark(link, link.collection)
    if mark is None or mark.adds is not None:
        return
    if link.call("looking for its source", lambda: link.client.collection_exists(mark.source)):
        raise InputError(
            f"{link.collection!r} is a version that care publish made of {mark.source!r}, and the next one will not "
            f"have what is written here: ingest into {mark.source!r}, and publish it"
        )


@contextmanager
def _open(corpus: str | Path | Iterable[Document], fields: Fields) -> Iterator[_Source]:
    if isinstance(corpus, str | Path):
        with Corpus(corpus, fields) as file, RejectsFile(rejects_path(corpus)) as rejects:
            yield _Source(_readable(iter(file)), lambda: file.share_read, rejects)
    else:
        yield _Source(check_document(document, number) for number, document in enumerate(corpus, 1))


def _readable(rows: Iterator[Row | Reject]) -> Iterator[Row | Reject]:
    """Give the rows of a file back, once it is sure that they are rows, and that their fields are known by name.

    Raises:
        InputError: every one of the first rows is rejected.
    """
    first = list(islice(rows, FIRST_ROWS))
    reasons = Counter(row.reason for row in first if isinstance(row, Reject))
    if first and reasons.total() == len(first):
        ((reason, count),) = reasons.most_common(1)
        raise InputError(
            f"not one of the first {len(first):,} rows can be ingested; {count:,} of them: {reason}. Nothing was "
            "written; where a field has another name, give --id-field, --text-field or --title-field"
        )
    return chain(first, rows)


def _not_empty(rows: Iterator[Row | Reject], collection: str) -> Iterator[Row | Reject]:
    """Give the rows back, once it is sure that there is a document to make a collection of.

    Raises:
        InputError: there is none.
    """
    first: list[Row | Reject] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Row):
            return chain(first, rows)
    raise InputError(f"no document is in the corpus, so collection {collection!r} was not made")


def _sparse_contract(rows: Iterator[Row | Reject]) -> tuple[SparseContract, Iterator[Row | Reject]]:
    """Fix the mean length of a document by the first ones; give the rows back."""
    first: list[Row | Reject] = []
    texts: list[str] = []
    for row in rows:
        first.append(row)
        if isinstance(row, Row):
            texts.append(embedded_text(row.document.title, row.document.text))
        if len(texts) == WINDOW_DOCUMENTS:
            break
    contract = SparseContract(bm25.ANALYSER, bm25.DEFAULT_K1, bm25.DEFAULT_B, bm25.average_length(texts))
    return contract, chain(first, rows)


@dataclass(slots=True)
class _Run:
    """One ingestion."""

    link: Collection
    model: DocumentModel
    schema: Schema
    settings: IngestSettings
    is_new: bool
    seen: Seen
    on_progress: Callable[[Progress], None]
    tally: Tally = field(default_factory=Tally)
    watch: Stopwatch = field(default_factory=Stopwatch)

    def go(self, source: _Source) -> IngestReport:
        """Do it."""
        start, expected = time.perf_counter(), None
        before = self._prepare()
        with closing(read_ahead(self._reader(source).plans(source.rows, source.share_read), WINDOWS_AHEAD)) as plans:
            noted = map(self._note, plans)
            if self.settings.dry_run:
                expected = estimate(noted, self.tally, self.schema, lambda: self.model.document_encoder)
            else:
                self._write(noted)
        self._sync()
        points = self._finish(before)
        return self._report(source.rejects, points, time.perf_counter() - start, expected)

    def _prepare(self) -> int:
        """Make a collection that is there ready; give the number of its points."""
        if self.is_new:
            return 0
        if not self.settings.dry_run:
            drop_false_claims(self.link, self.schema.vector_name)
        return self._count()

    def _reader(self, source: _Source) -> Reader:
        return Reader(
            link=self.link,
            schema=self.schema,
            counter=lambda: self.model.document_tokenizer,
            overflow=self.settings.overflow,
            shard=self.settings.shard,
            is_new=self.is_new,
            seen=self.seen,
            tally=self.tally,
            on_reject=source.rejects.write if source.rejects is not None else lambda _: None,
        )

    def _note(self, plan: Plan) -> Plan:
        self.tally.documents += plan.documents
        self.tally.unchanged += plan.unchanged
        self._show(plan)
        return plan

    def _show(self, plan: Plan) -> None:
        speed = self.tally.tokens / self.watch.total_seconds if self.tally.tokens else 0.0
        self.on_progress(Progress(self.tally.documents, self.tally.encoded, speed, plan.share_read))

    def _write(self, plans: Iterable[Plan]) -> None:
        tune_embedded(self.link.client, self.link.collection)
        limits = read_limits(self.link)
        with Sender(self.link) as sender:
            for plan in plans:
                # Before the chunks that say how many there are: a run that is killed in between finds them again.
                for page in pages(plan.surplus, limits.page):
                    delete_points(self.link, page)
                    self.tally.deleted += len(page)
                if plan.update:
                    sender.submit(partial(self._requests, plan.update, None, limits))
                    self.tally.updated += len(plan.update)
                if plan.encode:
                    self._encode(plan, sender, limits)

    def _encode(self, plan: Plan, sender: Sender, limits: Limits) -> None:
        encoder = self.model.document_encoder
        for batch in token_batches([task.tokens for task in plan.encode], self.settings.batch_tokens):
            tasks = [plan.encode[index] for index in batch]
            with self.watch.running():
                vectors = encoder.encode([task.chunk.embedded_text for task in tasks])
            check_vectors(vectors, tasks, self.schema.dense.dim)
            sender.submit(partial(self._requests, tasks, vectors, limits))
            self.tally.encoded += len(tasks)
            self.tally.inserted += sum(task.stored is None for task in tasks)
            self.tally.tokens += sum(task.tokens for task in tasks)
            self._show(plan)

    def _requests(self, tasks: Sequence[Task], vectors: Vectors | None, limits: Limits) -> Iterator[Write]:
        """Build points; called in a sender's thread, so that the encoder does not wait for it."""
        for start in range(0, len(tasks), limits.write):
            page = tasks[start : start + limits.write]
            rows = [None] * len(page) if vectors is None else vectors[start : start + limits.write].tolist()
            points = [task.point(self.schema, row) for task, row in zip(page, rows, strict=True)]
            new = [point for task, point in zip(page, points, strict=True) if task.stored is None]
            stored = [point for task, point in zip(page, points, strict=True) if task.stored is not None]
            yield from in_requests(Insert(new), self.schema.dense.dim, limits.write)
            yield from in_requests(Change(stored), self.schema.dense.dim, limits.write)

    def _sync(self) -> None:
        settings = self.settings
        if not settings.sync or (settings.dry_run and self.is_new):
            return
        if self.tally.rejected and not settings.sync_despite_rejects:
            raise InputError(
                f"rejected rows: {self.tally.rejected:,}, and each may be a document that is stored. The others are "
                "stored, and nothing was deleted. Mend the corpus, or give --sync-despite-rejects"
            )
        self.tally.deleted += delete_missing(
            self.link,
            self.seen,
            in_share=settings.shard.has,
            max_share=settings.max_delete_fraction,
            dry_run=settings.dry_run,
        )

    def _finish(self, before: int) -> int:
        """Count exactly, and give the number of points that carry the vector.

        Raises:
            QdrantError: there are fewer points than were acknowledged.
        """
        if self.settings.dry_run and self.is_new:
            return 0
        has_vector = models.Filter(must=[models.HasVectorCondition(has_vector=self.schema.vector_name)])
        points = self._count(has_vector)
        if self.settings.dry_run:
            return points
        finish_load(self.link)
        # Other shares of the corpus may be written, and synchronised, at the same time.
        lowest = before + self.tally.inserted - self.tally.deleted if self.settings.shard.of == 1 else 0
        if points < self.tally.chunks or self._count() < lowest:
            raise QdrantError(
                f"collection {self.link.collection!r}: {self.tally.chunks:,} points were acknowledged, and {points:,} "
                f"carry vector {self.schema.vector_name!r}: some were lost. Run the same command again"
            )
        return points

    def _count(self, condition: models.Filter | None = None) -> int:
        link = self.link
        return link.call("counting", lambda: link.client.count(link.collection, condition, exact=True)).count

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
            points=points,
            tokens=tally.tokens,
            seconds=round(seconds, 3),
            documents_per_second=round(tally.documents / seconds, 1),
            tokens_per_second=round(tally.tokens / watch.total_seconds, 1) if tally.tokens else 0.0,
            encoder_idle_fraction=round(watch.idle_share, 4),
            collection=self.link.collection,
            vector_name=self.schema.vector_name,
            fingerprint=self.schema.dense.fingerprint,
            rejects_file=str(rejects.path) if rejects is not None and tally.rejected else None,
            estimate=expected,
        )
