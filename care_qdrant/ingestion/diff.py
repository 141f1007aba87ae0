"""The difference of a window of a corpus to the stored points, by hashes: nothing, a new payload, or a vector."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.contracts.payload import chunk_payload, content_hash, payload_hash, stored_hash
from care_qdrant.contracts.stand_in import stand_ins
from care_qdrant.ingestion.pipeline import Task, Window
from care_qdrant.qdrant.calls import in_requests
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, PointVectors
from care_qdrant.qdrant.readable import Payloads, PointId
from care_qdrant.types import CARE_KEY, Chunk, Vectors, embedded_text, point_id

NeedsVector = Callable[[Mapping[str, Any]], bool]
"""Function that returns whether the point with a payload needs a vector."""
Orphans = Mapping[str, Set[PointId]]
"""Points that have the hash of a vector but lack the vector, by its name."""
NO_ORPHANS: Orphans = {}


@dataclass(frozen=True, slots=True)
class Stored:
    """Hashes and numbers that a stored point keeps under ``_care``."""

    chunks: int
    payload: str
    vectors: dict[str, str]
    stand_ins: tuple[str, ...] = ()
    """Fingerprints of the learned encoders that made vectors of the point."""


@dataclass(frozen=True, slots=True)
class ChunkTask(Task):
    """A chunk that has to be written."""

    chunk: Chunk
    stored: Stored | None
    """The stored point; None where there is none yet."""
    hashes: dict[str, str]
    """Content hash of each vector that this run writes, by vector name."""

    def lacks(self, vector_name: str) -> bool:
        """Return whether the stored point lacks a vector of this name, made from this text by this model."""
        return self.stored is None or self.stored.vectors.get(vector_name) != self.hashes[vector_name]

    def point(self, vectors: PointVectors, vector: Vectors | None) -> models.PointStruct:
        """Build the point with the vectors that have to be written."""
        written: dict[str, Any] = {} if vector is None else {vectors.vector_name: vector}
        if vectors.sparse is not None and self.lacks(SPARSE_VECTOR_NAME):
            terms = vectors.sparse.vector(self.text, self.chunk.terms)
            # A text without terms needs no vector, except to replace that of an older text.
            if terms.indices or self.stored is not None:
                written[SPARSE_VECTOR_NAME] = terms
        others = {} if self.stored is None else self.stored.vectors
        payload = chunk_payload(
            self.chunk, {**others, **self.hashes}, self._stand_ins(vectors, is_encoded=vector is not None)
        )
        # Validation would walk every number of a vector that `check_vectors` has already inspected.
        return models.PointStruct.model_construct(id=self.chunk.point_id, vector=written, payload=payload)

    def _stand_ins(self, vectors: PointVectors, *, is_encoded: bool) -> list[str]:
        """Return the learned encoders whose vectors the point has after the write."""
        before = () if self.stored is None else self.stored.stand_ins
        if not is_encoded:
            return list(before)
        kept = [fingerprint for fingerprint in before if fingerprint not in vectors.former_stand_ins]
        return kept if vectors.stand_in is None else [*kept, vectors.stand_in.fingerprint]


@dataclass(slots=True)
class Diff(Window[ChunkTask]):
    """The difference between a window of a corpus and the stored points."""

    documents: int = 0
    surplus: list[str] = field(default_factory=list)
    """Ids of stored points beyond the end of a document that became shorter."""
    others: int = 0
    """Number of stored points of documents of this window that another writer made under other ids."""
    share_read: float | None = None
    """Fraction of the corpus that was read when the window was compared, in [0, 1]."""


def make_diff(
    collection: Collection,
    vectors: PointVectors,
    documents: Sequence[Sequence[Chunk]],
    *,
    is_new: bool,
    orphans: Orphans = NO_ORPHANS,
) -> Diff:
    """Compare the chunks of a window with the stored points; the hashes of orphans do not count."""
    diff = Diff(collection, documents=len(documents))
    ids = [chunk.point_id for chunks in documents for chunk in chunks]
    stored = {} if is_new else read_stored(collection, ids, orphans)
    surplus: list[str] = []
    for chunks in documents:
        longest = 0
        for chunk in chunks:
            point = stored.get(chunk.point_id)
            task = chunk_task(chunk, point, vectors)
            longest = max(longest, point.chunks if point else 0)
            _sort_in(diff, task, vectors)
        document_id = chunks[0].document.id
        surplus += [point_id(document_id, number) for number in range(len(chunks), longest)]
    diff.surplus = list(read_stored(collection, surplus)) if surplus else []  # an interrupted run deleted some
    return diff


def chunk_task(chunk: Chunk, stored: Stored | None, vectors: PointVectors) -> ChunkTask:
    """Return the task that writes a chunk, with the vector that the chunk brings."""
    return ChunkTask(
        chunk,
        stored,
        _hashes(chunk, vectors, stored),
        text=chunk.embedded_text,
        tokens=chunk.tokens,
        name=f"document {chunk.document.id!r}",
        kind="insert" if stored is None else "update",
        vector=chunk.vector,
    )


def count_others(collection: Collection, document_ids: Sequence[str]) -> int:
    """Count the points of documents that ingestion did not write, such as LlamaIndex nodes with random ids."""
    return sum(in_requests(document_ids, collection.limits.ids, lambda ids: collection.count(_others(ids))))


def delete_others(collection: Collection, is_stored: Callable[[str], bool]) -> int:
    """Delete the points of other writers whose document ingestion has stored, by its id; return their number.

    Before the end of a run, nobody knows for which documents the encoder makes no vector.
    """
    deleted = 0
    for page in collection.scroll("looking for other writers", where=_others(None), payload=["doc_id"]):
        documents = {record.id: (record.payload or {}).get("doc_id") for record in page}
        gone = [id_ for id_, document in documents.items() if isinstance(document, str) and is_stored(document)]
        collection.delete(gone)
        deleted += len(gone)
    return deleted


def has_other_writers(collection: Collection) -> bool:
    """Return whether any point of a collection was not written by ingestion.

    False also where strict mode allows no filter on a payload key without an index.
    """
    strict = collection.schema.strict_mode
    if strict is not None and strict.unindexed_filtering_retrieve is False:
        return False
    return collection.count(_others(None)) > 0


def _others(document_ids: Sequence[str] | None) -> models.Filter:
    must: list[models.Condition] = [models.IsEmptyCondition(is_empty=models.PayloadField(key=f"{CARE_KEY}.chunk"))]
    if document_ids is not None:
        must.append(models.FieldCondition(key="doc_id", match=models.MatchAny(any=list(document_ids))))
    return models.Filter(must=must)


def read_stored(collection: Collection, ids: Sequence[str], orphans: Orphans = NO_ORPHANS) -> dict[str, Stored]:
    """Return the hashes and numbers in the payloads of existing points, by point id."""
    existing: dict[str, Stored] = {}
    for point, record in collection.retrieve(ids, "reading stored hashes", payload=[CARE_KEY]).items():
        care = (record.payload or {}).get(CARE_KEY) or {}
        made_of = care.get("vectors") or {}
        hashes = {name: digest for name, digest in made_of.items() if point not in orphans.get(name, ())}
        existing[str(point)] = Stored(
            int(care.get("chunks", 0)), str(care.get("payload", "")), hashes, stand_ins(record.payload or {})
        )
    return existing


def _sort_in(diff: Diff, task: ChunkTask, vectors: PointVectors) -> None:
    if task.lacks(vectors.vector_name):
        diff.encode.append(task)
    elif task.stored and task.stored.payload == payload_hash(task.chunk) and not any(map(task.lacks, task.hashes)):
        diff.unchanged += 1
    else:
        diff.update.append(task)


def _hashes(chunk: Chunk, vectors: PointVectors, stored: Stored | None) -> dict[str, str]:
    title = chunk.document.title
    hashes = {vectors.vector_name: content_hash(vectors.dense.constants, title, chunk.text)}
    if stored is not None and vectors.stand_in is not None and vectors.stand_in.instead_of is not None:
        by_old_model = content_hash(vectors.stand_in.instead_of, title, chunk.text)
        if stored.vectors.get(vectors.vector_name) == by_old_model:  # a better vector than this run could make
            hashes[vectors.vector_name] = by_old_model
    if vectors.sparse is not None:
        hashes[SPARSE_VECTOR_NAME] = content_hash(vectors.sparse.constants, title, chunk.text)
    return hashes


def remove_orphaned_hashes(collection: Collection, vector_name: str, needs_vector: NeedsVector | None = None) -> None:
    """Remove the hash of a vector from each point that does not have the vector.

    Deleting a named vector leaves the payloads as they are, and ingestion trusts their hashes: without this, a corpus
    would be reported as unchanged while none of its points could be found. Points keep the hash where ``needs_vector``
    returns False for their payload, for example for a text without terms.
    """
    for part, ids in orphaned(collection, vector_name, needs_vector):
        part.delete_payload_key(ids, f'{CARE_KEY}.vectors."{vector_name}"')


def orphaned(
    collection: Collection, vector_name: str, needs_vector: NeedsVector | None = None
) -> Iterator[tuple[Collection, list[PointId]]]:
    """Yield the points whose hash `remove_orphaned_hashes` removes, page by page, each page with its part."""
    without = models.Filter(must_not=[models.HasVectorCondition(has_vector=vector_name)])
    for part in collection.parts():
        read: Payloads = needs_vector is not None or [CARE_KEY]
        for page in part.scroll("looking for points without a vector", where=without, payload=read):
            payloads = {record.id: record.payload or {} for record in page}
            yield (
                part,
                [
                    id_
                    for id_, payload in payloads.items()
                    if stored_hash(payload, vector_name) is not None and (needs_vector is None or needs_vector(payload))
                ],
            )


def has_terms(sparse: SparseContract, payload: Mapping[str, Any]) -> bool:
    """Return whether the text of a point that ingestion wrote has terms."""
    return sparse.has_terms(embedded_text(str(payload.get("title") or ""), str(payload.get("text") or "")))
