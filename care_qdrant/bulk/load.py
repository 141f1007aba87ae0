"""Parts into a collection, by ingestion itself: its documents come cut and its vectors come ready out of the parts.

So both ways mix, loading twice writes once, and the collection is the one that direct ingestion writes. Several
loaders share the parts; the index waits until all of them are through, whoever is the last.
"""

import hashlib
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from qdrant_client import QdrantClient, models
from typing_extensions import override

from care_qdrant.bulk.encode import read_part
from care_qdrant.bulk.work import Manifest, Receipt, Work
from care_qdrant.corpus.rows import Reject
from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.errors import InputError
from care_qdrant.index.attach import AttachReport, AttachSettings, attach_vector
from care_qdrant.index.ingest import ingest
from care_qdrant.index.points import Characters, PointReader, PointWindow, expected_hash, stored_hash
from care_qdrant.index.settings import IngestReport, IngestSettings, Shard
from care_qdrant.progress import Progress
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.qdrant.contracts import SparseContract, VectorContract
from care_qdrant.qdrant.create import Index, PointVectors, Storage, create_collection, finish_load, join_collection
from care_qdrant.qdrant.layout import Layout, guess_layout
from care_qdrant.qdrant.learned import stored_vector
from care_qdrant.qdrant.payload import content_hash
from care_qdrant.qdrant.quantization import find_nearest, overlap_of, record_rescoring
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import IDENTITY_KEY
from care_qdrant.types import Chunk, Document, Vectors

WINDOWS = 8
"""Windows of ingestion whose vectors are kept: more than it reads ahead."""
SEARCHED = 256
"""Points that `verify` searches for, to measure the search graph."""
DRAWN_A_PART = 16
"""Points of each part whose vectors `verify` compares."""


def load(
    work: Work,
    client: QdrantClient,
    collection: str,
    *,
    part: tuple[int, int] = (1, 1),
    storage: Storage | None = None,
    shard_key: str | None = None,
    indexes: Mapping[str, Index] | None = None,
    retries: RetryPolicy | None = None,
    grpc: bool = True,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> IngestReport:
    """Load the parts of a job, or one loader's share of them."""
    manifest, receipts = _finished(work)
    target = Collection(client, collection, retries, shard_key=shard_key)
    target = target.sibling(target.aliases().get(collection, collection))
    vectors = _vectors(manifest)
    if join_collection(target, manifest.vector_name, vectors.dense, sparse=vectors.sparse is not None) is None:
        create_collection(target, vectors, storage or Storage(), bulk_load=True)
    number, of = part
    source = _Parts(work, manifest, receipts[number - 1 :: of])
    settings = IngestSettings(
        overflow=manifest.overflow,
        sparse=vectors.sparse is not None,
        shard=_Loader(number, of),
        shard_key=shard_key,
        indexes=indexes or {},
        finish=False,
        grpc=grpc,
    )
    report = ingest(
        source.documents(),
        _Model(manifest.model_name, vectors.dense, source),
        client,
        target.name,
        vector_name=manifest.vector_name,
        settings=settings,
        retries=retries,
        on_progress=on_progress,
        cut=source.cut,
    )
    _finish(work, target, vectors, part, receipts)
    return report


def load_points(
    work: Work,
    client: QdrantClient,
    collection: str,
    *,
    part: tuple[int, int] = (1, 1),
    settings: AttachSettings | None = None,
    retries: RetryPolicy | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> AttachReport:
    """Write the vectors of a job over a collection to its points, beside the vectors that they have.

    A point whose text is not that of the part any more is left alone, as are points that were added since: the report
    counts how many points have the vector.
    """
    manifest, receipts = _finished(work)
    vectors = _vectors(manifest)
    source = _Parts(work, manifest, receipts[part[0] - 1 :: part[1]])
    has_vector = vectors.vector_name in Collection(client, collection, retries).resolve().schema.dense
    settings = replace(settings or AttachSettings(), text_field=None if has_vector else manifest.text_field)
    model = _Model(manifest.model_name, vectors.dense, source)
    return attach_vector(
        client,
        collection,
        model,
        vector_name=vectors.vector_name,
        settings=settings,
        retries=retries,
        on_progress=on_progress,
        read=source.windows,
    )


def _finish(
    work: Work, target: Collection, vectors: PointVectors, part: tuple[int, int], receipts: Sequence[Receipt]
) -> None:
    """Note that a loader is through; build the index if all are, also those that died and were run again."""
    number, of = part
    identity = str(target.refresh().metadata.get(IDENTITY_KEY, target.name))
    job = hashlib.sha256("".join(receipt.sha256 for receipt in receipts).encode()).hexdigest()
    place = f"loads/{identity}"
    work.write(f"{place}/{number}-of-{of}.json", json.dumps({"job": job}).encode())
    notes = [work.read(f"{place}/{loader}-of-{of}.json") for loader in range(1, of + 1)]
    if all(note is not None and json.loads(note)["job"] == job for note in notes):
        finish_load(target)
        record_rescoring(target, vectors.vector_name)


class _Loader(Shard):
    """A share of the parts: ingestion notes it as a shard, and every document that it gives belongs to it."""

    @override
    def has(self, document_id: str) -> bool:
        return True


def _point_id(manifest: Manifest, chunk: Chunk) -> PointId:
    return chunk.point_id if manifest.collection is None else cast(PointId, json.loads(chunk.document.id))


def _hash(manifest: Manifest, chunk: Chunk) -> str:
    return content_hash(manifest.fingerprint, chunk.document.title, chunk.text)


def _finished(work: Work) -> tuple[Manifest, list[Receipt]]:
    manifest, receipts = work.manifest(), work.receipts()
    missing = [unit.name for unit in manifest.units if unit.name not in receipts]
    if missing:
        raise InputError(
            f"{work.url}: {len(missing):,} of {len(manifest.units):,} units have no part yet ({missing[0]}): run "
            f"care bulk encode {work.url}"
        )
    return manifest, [receipts[unit.name] for unit in manifest.units]


def _vectors(manifest: Manifest) -> PointVectors:
    average = manifest.average_length
    new = SparseContract.of_texts(())
    sparse = None if average is None else replace(new, average_length=average, lead=manifest.lead)
    return PointVectors(manifest.vector_name, manifest.contract, sparse)


class _Parts(Characters):
    """Documents, their chunks and their vectors, out of parts; in the place of an encoder."""

    prompt = ""

    def __init__(self, work: Work, manifest: Manifest, receipts: Sequence[Receipt]) -> None:
        self._work, self._manifest, self._receipts = work, manifest, receipts
        self._chunks: dict[str, list[Chunk]] = {}
        self._reading: dict[str, Vectors] = {}
        self._windows: deque[dict[str, Vectors]] = deque(maxlen=WINDOWS)
        self.dim = manifest.dim

    def documents(self) -> Iterator[Document]:
        """Return the documents; used by the thread that reads ahead."""
        for receipt in self._receipts:
            document: Document | None = None
            for part in read_part(self._work, self._manifest, receipt):
                for chunk, vector in zip(part.chunks, part.vectors, strict=True):
                    if document is not None and chunk.document.id != document.id:
                        yield document
                    if document is None or chunk.document.id != document.id:
                        document = chunk.document
                    self._chunks.setdefault(chunk.document.id, []).append(chunk)
                    self._reading[chunk.embedded_text] = vector
            if document is not None:
                yield document

    def windows(self, collection: Collection, reader: PointReader) -> Iterator[PointWindow]:
        """Return the points of a job over a collection whose text is still that of the part."""
        manifest = self._manifest
        for part in (part for receipt in self._receipts for part in read_part(self._work, manifest, receipt)):
            self._windows.append(
                {chunk.embedded_text: vector for chunk, vector in zip(part.chunks, part.vectors, strict=True)}
            )
            hashes = {_point_id(manifest, chunk): _hash(manifest, chunk) for chunk in part.chunks}
            for key in {chunk.document.metadata.get("shard_key") for chunk in part.chunks}:  # one: a unit is of one
                window = PointWindow(collection.of_shard(key))
                records = list(window.place.retrieve(list(hashes)).values())
                reader.sort(window, records)
                window.encode = [task for task in window.encode if hashes[task.id] == task.hash]
                yield window

    def cut(self, documents: Sequence[Document]) -> Iterator[list[Chunk] | Reject]:
        """Return the chunks of a window as the part has them; its vectors stay until it is written."""
        self._windows.append(self._reading)
        self._reading = {}
        return iter([self._chunks.pop(document.id) for document in documents])

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:  # noqa: ARG002  # of the protocol
        return np.stack([next(window[text] for window in reversed(self._windows) if text in window) for text in texts])


@dataclass(frozen=True, slots=True)
class _Model:
    """What ingestion needs of a model, without one."""

    name: str
    _contract: VectorContract
    document_encoder: Encoder

    @property
    def document_tokenizer(self) -> TokenCounter:
        return self.document_encoder

    def contract(self) -> VectorContract:
        return self._contract

    def require_documents(self) -> None:
        """The parts have what it takes."""


@dataclass(slots=True)
class BulkVerification:
    """What `verify` found."""

    collection: str
    vector_name: str
    units: int
    chunks: int
    """Of all parts."""
    points: int
    """Of the collection with this vector; others may have written some of them."""
    right: int = 0
    missing: int = 0
    outdated: int = 0
    """Points whose hash is of another text or model than that of the part."""
    changed: int = 0
    """Points that others have edited or deleted since the plan, of a job over a collection."""
    compared_vectors: int = 0
    least_cosine: float | None = None
    """Of the stored vectors to those of the parts, over all that were compared."""
    recall: float | None = None
    """Share of the 10 nearest points that the search graph finds, mean over sampled vectors; None without a graph."""
    wrong_units: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify(
    work: Work,
    client: QdrantClient,
    collection: str,
    *,
    threads: int = 4,
    retries: RetryPolicy | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> BulkVerification:
    """Compare each part with the collection: every point and hash, a sample of vectors, the recall of the graph."""
    manifest, receipts = _finished(work)
    target = Collection(client, collection, retries)
    target = target.sibling(target.aliases().get(collection, collection))
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
    counts, cosines, drawn = Counter[str](), list[float](), list[Vectors]()
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(lambda each: _compare(work, manifest, target, layout, each), receipts)
        for done, (receipt, (its_counts, its_cosines, its_drawn)) in enumerate(zip(receipts, found, strict=True), 1):
            counts.update(its_counts)
            cosines += its_cosines
            drawn += its_drawn
            report.wrong_units += [receipt.unit] if its_counts["missing"] or its_counts["outdated"] else []
            on_progress(done, len(receipts))
    report.right, report.missing = counts["right"], counts["missing"]
    report.outdated, report.changed = counts["outdated"], counts["changed"]
    report.compared_vectors, report.least_cosine = len(cosines), min(cosines, default=None)
    report.recall = _recall(target, manifest.vector_name, random.Random(0).sample(drawn, min(SEARCHED, len(drawn))))
    if report.missing or report.outdated:
        report.problems.append(
            f"{report.missing:,} points are missing and {report.outdated:,} are of another text, in "
            f"{len(report.wrong_units):,} units; care bulk load {work.url} writes them"
        )
    if report.least_cosine is not None and report.least_cosine < 0.99:
        report.problems.append(f"a stored vector has cosine {report.least_cosine:.3f} to that of its part")
    return report


def _compare(
    work: Work, manifest: Manifest, target: Collection, layout: Layout | None, receipt: Receipt
) -> tuple[Counter[str], list[float], list[Vectors]]:
    """Return what the points of a part are, the cosines of sampled vectors to theirs, and these vectors."""
    counts, cosines, drawn, name = Counter[str](), list[float](), list[Vectors](), manifest.vector_name
    rows = random.Random(receipt.unit).sample(range(receipt.chunks), min(DRAWN_A_PART, receipt.chunks))
    first = 0
    for part in read_part(work, manifest, receipt):
        ids = [_point_id(manifest, chunk) for chunk in part.chunks]
        stored = target.retrieve(ids, "comparing", payload=["_care"] if layout is None else True)
        for id_, chunk in zip(ids, part.chunks, strict=True):
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
                counts["missing"] += layout is None  # of a point, its hash says that
                continue
            made = part.vectors[row]
            cosines.append(float(vector @ made / (np.linalg.norm(vector) * np.linalg.norm(made))))
            drawn.append(made)
        first += len(ids)
    return counts, cosines, drawn


def _recall(target: Collection, name: str, vectors: Sequence[Vectors]) -> float | None:
    """Compare the search graph with an exact search; None where there is nothing to search with, or no graph."""
    if not vectors or target.is_embedded:
        return None
    queries = [vector.tolist() for vector in vectors]
    exact, graph = (find_nearest(target, name, queries, models.SearchParams(exact=exact)) for exact in (True, False))
    return round(overlap_of(exact, graph), 4)
