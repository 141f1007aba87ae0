"""What a window of a corpus needs: nothing, a new payload, or a vector. Decided by hashes, before any encoding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from qdrant_client import models

from care_qdrant.corpus.chunking import Sized
from care_qdrant.encoders import bm25
from care_qdrant.encoders.usable import require_usable
from care_qdrant.store.contracts import SparseContract
from care_qdrant.store.create import SPARSE_VECTOR_NAME, Schema
from care_qdrant.store.payload import CARE_KEY, chunk_payload, content_hash, payload_hash
from care_qdrant.store.retry import Collection
from care_qdrant.types import Chunk, Vectors, point_id

IDS_OF_ONE_REQUEST = 1_024


@dataclass(frozen=True, slots=True)
class Stored:
    """What a stored point says of itself under ``_care``."""

    chunks: int
    payload: str
    vectors: dict[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk that has to be written."""

    chunk: Chunk
    tokens: int
    stored: Stored | None
    """None for a point that is not there yet."""
    hashes: dict[str, str]
    """Of the vectors that the point will carry by this run, by vector name."""

    def lacks(self, vector_name: str) -> bool:
        """Say whether the stored point has no vector of this name that was made of this text by this model."""
        return self.stored is None or self.stored.vectors.get(vector_name) != self.hashes[vector_name]

    def point(self, schema: Schema, vector: Sequence[float] | None) -> models.PointStruct:
        """Build the point, with those of its vectors that have to be written.

        Args:
            schema: What it carries.
            vector: The dense vector; None leaves the stored one.
        """
        vectors: dict[str, Any] = {} if vector is None else {schema.vector_name: vector}
        if schema.sparse is not None and self.lacks(SPARSE_VECTOR_NAME):
            terms = _sparse_vector(self.chunk, schema.sparse)
            # A text without terms needs no vector, except to replace that of an older text.
            if terms.indices or self.stored is not None:
                vectors[SPARSE_VECTOR_NAME] = terms
        others = {} if self.stored is None else self.stored.vectors
        payload = chunk_payload(self.chunk, {**others, **self.hashes})
        return models.PointStruct(id=self.chunk.point_id, vector=vectors, payload=payload)


@dataclass(slots=True)
class Plan:
    """The work of one window."""

    documents: int = 0
    unchanged: int = 0
    """Chunks that are stored as they should be."""
    encode: list[Task] = field(default_factory=list)
    update: list[Task] = field(default_factory=list)
    """Chunks whose dense vector is right; payload or sparse vector are not."""
    surplus: list[str] = field(default_factory=list)
    """Ids of stored points beyond the end of a document that became shorter."""
    share_read: float | None = None
    """How much of the corpus was read when this was planned."""


def make_plan(link: Collection, schema: Schema, documents: Sequence[Sequence[Sized]], *, is_new: bool) -> Plan:
    """Compare the chunks of a window with what is stored.

    Args:
        link: The collection.
        schema: What its points carry.
        documents: The chunks of each document.
        is_new: The collection is new or does not exist, so nothing needs to be asked.
    """
    plan = Plan(documents=len(documents))
    ids = [sized.chunk.point_id for chunks in documents for sized in chunks]
    stored = {} if is_new else read_stored(link, ids)
    for chunks in documents:
        longest = 0
        for sized in chunks:
            task = Task(sized.chunk, sized.tokens, stored.get(sized.chunk.point_id), _hashes(sized.chunk, schema))
            longest = max(longest, task.stored.chunks if task.stored else 0)
            _sort_in(plan, task, schema)
        document_id = chunks[0].chunk.document.id
        plan.surplus += [point_id(document_id, number) for number in range(len(chunks), longest)]
    return plan


def read_stored(link: Collection, ids: Sequence[str]) -> dict[str, Stored]:
    """Give what the points that exist say of themselves, by id."""
    found: dict[str, Stored] = {}
    for page in pages(ids, IDS_OF_ONE_REQUEST):
        for record in link.call("reading stored hashes", partial(_retrieve, link, page)):
            care = (record.payload or {}).get(CARE_KEY) or {}
            vectors = dict(care.get("vectors") or {})
            found[str(record.id)] = Stored(int(care.get("chunks", 0)), str(care.get("payload", "")), vectors)
    return found


def check_vectors(vectors: Vectors, tasks: Sequence[Task], dim: int) -> None:
    """Refuse what Qdrant might accept and never find again.

    Raises:
        EncodingError: a vector has the wrong shape, is not finite or has no length.
    """
    require_usable(vectors, (len(tasks), dim), lambda row: f"document {tasks[row].chunk.document.id!r}")


def _sort_in(plan: Plan, task: Task, schema: Schema) -> None:
    if task.lacks(schema.vector_name):
        plan.encode.append(task)
    elif task.stored and task.stored.payload == payload_hash(task.chunk) and not any(map(task.lacks, task.hashes)):
        plan.unchanged += 1
    else:
        plan.update.append(task)


def _hashes(chunk: Chunk, schema: Schema) -> dict[str, str]:
    title = chunk.document.title
    hashes = {schema.vector_name: content_hash(schema.dense.fingerprint, title, chunk.text)}
    if schema.sparse is not None:
        hashes[SPARSE_VECTOR_NAME] = content_hash(_constants(schema.sparse), title, chunk.text)
    return hashes


def _constants(sparse: SparseContract) -> str:
    return f"{sparse.fingerprint}/{sparse.k1}/{sparse.b}/{sparse.average_length}"


def _sparse_vector(chunk: Chunk, sparse: SparseContract) -> models.SparseVector:
    return bm25.document_vector(chunk.embedded_text, average_length=sparse.average_length, k1=sparse.k1, b=sparse.b)


def _retrieve(link: Collection, ids: Sequence[str]) -> list[models.Record]:
    return link.client.retrieve(link.collection, ids, with_payload=[CARE_KEY], with_vectors=False)


def pages(items: Iterable[str], size: int) -> Iterator[list[str]]:
    """Cut items into lists of at most ``size``."""
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
