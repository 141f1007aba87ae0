"""Loads parts into a collection through ingestion and attach, whose tasks get their vectors from the parts.

So both ways can be mixed, loading twice writes once, and the collection is the one that direct ingestion writes.
Several loaders share the parts; the last one to finish starts the index.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import cast

import numpy as np
from qdrant_client import models
from typing_extensions import override

from care_qdrant.bulk.encode import read_part
from care_qdrant.bulk.job import Job, Manifest, Receipt
from care_qdrant.contracts.layouts import Layout, guess_layout
from care_qdrant.contracts.learned import stored_vector
from care_qdrant.contracts.metadata import IDENTITY
from care_qdrant.contracts.payload import content_hash, stored_hash
from care_qdrant.encoders.agreement import LEAST_STORED, cosines
from care_qdrant.errors import InputError, counted, next_command
from care_qdrant.ingestion.ingest import ingest_encoded
from care_qdrant.ingestion.rows import CutDocument
from care_qdrant.ingestion.settings import IngestReport, IngestSettings, Shard
from care_qdrant.progress import Progress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import Index, PointVectors, Storage, finish_load
from care_qdrant.qdrant.readable import PointId
from care_qdrant.search.tuning import find_nearest, overlap_of, record_rescoring
from care_qdrant.types import Chunk, Vectors
from care_qdrant.vectors.attach import AttachReport, AttachSettings, attach_encoded, end_attach
from care_qdrant.vectors.points import PointTask, expected_hash

SEARCHED = 256
"""Number of points for which `verify` searches, to measure the search graph."""
DRAWN_A_PART = 16
"""Points of each part whose vectors `verify` compares."""


def load(
    job: Job,
    collection: Collection,
    *,
    part: tuple[int, int] = (1, 1),
    storage: Storage | None = None,
    indexes: Mapping[str, Index] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> IngestReport:
    """Load the parts of a job, or one loader's share of them, into a collection."""
    manifest, receipts = _finished(job)
    vectors = _vectors(manifest)
    loader = _Loader(*part, job=_digest(receipts))
    settings = IngestSettings(
        overflow=manifest.overflow,
        sparse=vectors.sparse is not None,
        shard=loader,
        indexes=indexes or {},
        finish=False,
    )
    report = ingest_encoded(
        _documents(job, manifest, loader.of_parts(receipts)),
        vectors,
        collection,
        settings=settings,
        storage=storage,
        inputs=manifest.inputs,
        on_progress=on_progress,
    )
    target = collection.sibling(report.collection)
    if _all_are_through(job, target, loader):  # including loaders that died and were run again
        finish_load(target)
        record_rescoring(target, vectors.vector_name)
    return report


def load_points(
    job: Job,
    collection: Collection,
    *,
    part: tuple[int, int] = (1, 1),
    settings: AttachSettings | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> AttachReport:
    """Add the vectors of a job over a collection to its points, which keep their other vectors.

    A point whose text differs from the part's by now is skipped, as are points that were added since: the report
    counts how many points have the vector.
    """
    manifest, receipts = _finished(job)
    vectors = _vectors(manifest)
    loader = _Loader(*part, job=_digest(receipts))
    has_vector = vectors.vector_name in collection.whole().schema.dense
    settings = replace(settings or AttachSettings(), text_field=None if has_vector else manifest.text_field)
    report = attach_encoded(
        collection,
        vectors.dense,
        _pages(job, manifest, loader.of_parts(receipts)),
        vector_name=vectors.vector_name,
        settings=settings,
        on_progress=on_progress,
    )
    target = collection.sibling(report.collection)
    if _all_are_through(job, target, loader):
        end_attach(target, vectors.vector_name)
    return report


@dataclass(frozen=True, slots=True)
class _Loader(Shard):
    """A share of the parts of a job: ingestion records it as a shard, and all its documents belong to it."""

    job: str = ""
    """Digest of the parts of the job."""

    @property
    @override
    def name(self) -> str:
        # Other documents than a shard of the corpus, and than a share of other parts.
        return f"{self.number}/{self.of}" + (f" of {self.job}" if self.of > 1 else "")

    @override
    def has(self, document_id: str) -> bool:
        return True


def _all_are_through(job: Job, target: Collection, loader: _Loader) -> bool:
    """Record that a loader has finished, and return whether all have."""
    place = f"loads/{IDENTITY.find(target.refresh().metadata) or target.name}"
    job.write(f"{place}/{loader.number}-of-{loader.of}.json", json.dumps({"job": loader.job}).encode())
    notes = [job.read(f"{place}/{number}-of-{loader.of}.json") for number in range(1, loader.of + 1)]
    return all(note is not None and json.loads(note)["job"] == loader.job for note in notes)


def _digest(receipts: Sequence[Receipt]) -> str:
    return hashlib.sha256("".join(receipt.sha256 for receipt in receipts).encode()).hexdigest()


def _point_id(manifest: Manifest, chunk: Chunk) -> PointId:
    return chunk.point_id if manifest.collection is None else cast(PointId, json.loads(chunk.document.id))


def _hash(manifest: Manifest, chunk: Chunk) -> str:
    return content_hash(manifest.fingerprint, chunk.document.title, chunk.text)


def _finished(job: Job) -> tuple[Manifest, list[Receipt]]:
    manifest, receipts = job.manifest(), job.receipts()
    missing = [unit.name for unit in manifest.units if unit.name not in receipts]
    if missing:
        raise InputError(
            f"{job.url}: {counted(len(missing), 'unit', 'have', of=len(manifest.units))} no part yet ({missing[0]}): "
            f"run care bulk encode {job.url}"
        )
    return manifest, [receipts[unit.name] for unit in manifest.units]


def _vectors(manifest: Manifest) -> PointVectors:
    return PointVectors(manifest.vector_name, manifest.contract, manifest.sparse)


def _documents(job: Job, manifest: Manifest, receipts: Sequence[Receipt]) -> Iterator[CutDocument]:
    """Yield the chunks of each document of some parts; all chunks of a document are adjacent in one part."""
    for receipt in receipts:
        chunks = chain.from_iterable(read_part(job, manifest, receipt))
        yield from (list(group) for _, group in groupby(chunks, key=lambda chunk: chunk.document.id))


def _pages(
    job: Job, manifest: Manifest, receipts: Sequence[Receipt]
) -> Iterator[tuple[models.ShardKey | None, list[PointTask]]]:
    """Yield the points of some parts of a job over a collection, with the key of their shards."""
    for chunks in chain.from_iterable(read_part(job, manifest, receipt) for receipt in receipts):
        for key, group in groupby(chunks, key=lambda chunk: chunk.document.metadata.get("shard_key")):
            yield (
                key,
                [
                    PointTask(
                        id_ := _point_id(manifest, chunk),
                        _hash(manifest, chunk),
                        text=chunk.embedded_text,
                        tokens=chunk.tokens,
                        name=f"point {id_!r}",
                        kind="attach",
                        vector=chunk.vector,
                    )
                    for chunk in group
                ],
            )


@dataclass(slots=True)
class BulkVerification:
    """Comparison of a job's parts with a collection, by `verify`."""

    collection: str
    vector_name: str
    units: int
    chunks: int
    """Chunks of all parts."""
    points: int
    """Points of the collection with this vector, some of which other programs may have written."""
    right: int = 0
    missing: int = 0
    outdated: int = 0
    """Points whose hash is of another text or model than the part's."""
    changed: int = 0
    """Points that were edited or deleted since the plan, for a job over a collection."""
    compared_vectors: int = 0
    least_cosine: float | None = None
    """Least cosine of a stored vector to the part's vector, over all that were compared."""
    recall: float | None = None
    """Share of the 10 nearest points that the search graph finds, mean over sampled vectors; None without a graph."""
    wrong_units: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify(
    job: Job,
    collection: Collection,
    *,
    threads: int = 4,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> BulkVerification:
    """Compare the plan with the parts, and each part with the collection.

    Every row of the plan must be in a part or among its rejected rows. Every point and hash of a part and a sample of
    the vectors are compared, and the recall of the search graph is measured.
    """
    manifest, receipts = _finished(job)
    target = collection.sibling(collection.aliases().get(collection.name, collection.name))
    report = BulkVerification(
        collection=target.name,
        vector_name=manifest.vector_name,
        units=len(receipts),
        chunks=sum(receipt.chunks for receipt in receipts),
        points=target.count_with_vector(manifest.vector_name),
    )
    layout = None
    if manifest.collection is not None:
        payloads = [record.payload or {} for record in target.sample(SEARCHED)]
        layout = guess_layout(payloads, text_field=manifest.text_field)
    counts, agreements, drawn = Counter[str](), list[float](), list[Vectors]()
    with ThreadPoolExecutor(threads) as pool:
        compared = pool.map(lambda receipt: _compare(job, manifest, target, layout, receipt), receipts)
        pairs = zip(receipts, compared, strict=True)
        for done, (receipt, (its_counts, its_agreements, its_drawn)) in enumerate(pairs, 1):
            counts.update(its_counts)
            agreements += its_agreements
            drawn += its_drawn
            report.wrong_units += [receipt.unit] if its_counts["missing"] or its_counts["outdated"] else []
            on_progress(done, len(receipts))
    report.right, report.missing = counts["right"], counts["missing"]
    report.outdated, report.changed = counts["outdated"], counts["changed"]
    report.compared_vectors, report.least_cosine = len(agreements), min(agreements, default=None)
    plan = {unit.name: unit.documents + unit.rejected for unit in manifest.units}
    if partial := [receipt.unit for receipt in receipts if receipt.documents + receipt.rejected != plan[receipt.unit]]:
        report.wrong_units += [name for name in partial if name not in report.wrong_units]
        report.problems.append(
            f"the parts of {counted(len(partial), 'unit')} do not account for each row of the plan ({partial[0]}): "
            f"remove their receipts and run care bulk encode {job.url}"
        )
    report.recall = _recall(target, manifest.vector_name, random.Random(0).sample(drawn, min(SEARCHED, len(drawn))))
    if report.missing or report.outdated:
        report.problems.append(
            f"{counted(report.missing, 'point', 'are')} missing and {counted(report.outdated, 'point', 'are')} of "
            f"another text, in {counted(len(report.wrong_units), 'unit')}; write them, "
            + next_command(f"care bulk load {job.url} --collection {collection.name}", model=False)
        )
    if report.least_cosine is not None and not report.least_cosine >= LEAST_STORED:
        report.problems.append(f"a stored vector has cosine {report.least_cosine:.3f} to that of its part")
    return report


def _compare(
    job: Job, manifest: Manifest, target: Collection, layout: Layout | None, receipt: Receipt
) -> tuple[Counter[str], list[float], list[Vectors]]:
    """Return counts of a part's points by state, cosines of sampled stored vectors, and the sample's vectors."""
    counts, compared, drawn, name = Counter[str](), list[Vectors](), list[Vectors](), manifest.vector_name
    rows = random.Random(receipt.unit).sample(range(receipt.chunks), min(DRAWN_A_PART, receipt.chunks))
    first = 0
    for chunks in read_part(job, manifest, receipt):
        ids = [_point_id(manifest, chunk) for chunk in chunks]
        stored = target.retrieve(ids, "comparing", payload=["_care"] if layout is None else True)
        for id_, chunk in zip(ids, chunks, strict=True):
            record, expected = stored.get(id_), _hash(manifest, chunk)
            payload = {} if record is None else record.payload or {}
            if layout is not None and expected_hash(layout, payload, name, manifest.fingerprint) != expected:
                counts["changed"] += 1
                stored.pop(id_, None)
            elif record is None:
                counts["missing"] += 1
            elif stored_hash(payload, name) != expected:
                counts["outdated"] += 1
            else:
                counts["right"] += 1
        sample = [row - first for row in rows if first <= row < first + len(ids) and ids[row - first] in stored]
        with_vectors = target.retrieve([ids[row] for row in sample], "comparing", payload=False, vectors=[name])
        vectors = {id_: stored_vector(record.vector, name) for id_, record in with_vectors.items()}
        for row in sample:
            if (vector := vectors.get(ids[row])) is None:
                counts["missing"] += layout is None  # for a job over a collection, the hash says that
                continue
            compared.append(vector)
            drawn.append(cast(Vectors, chunks[row].vector))
        first += len(ids)
    agreements = cosines(np.stack(compared), np.stack(drawn)).tolist() if drawn else []
    return counts, agreements, drawn


def _recall(target: Collection, name: str, vectors: Sequence[Vectors]) -> float | None:
    """Return the recall of the search graph against exact search; None without sampled vectors or without a graph."""
    if not vectors or target.is_embedded:
        return None
    queries = [vector.tolist() for vector in vectors]
    exact, graph = (find_nearest(target, name, queries, models.SearchParams(exact=exact)) for exact in (True, False))
    return round(overlap_of(exact, graph), 4)
