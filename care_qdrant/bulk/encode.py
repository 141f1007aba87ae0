"""Encodes one unit: reads and cuts its rows, and writes one Parquet part, the rejected rows and the receipt.

The bytes of a part depend only on the unit, the model and the machine's arithmetic: two workers on one unit write the
same. Nothing is shared between units, so any scheduler may run them in any order, twice, or on another machine.
"""

import hashlib
import io
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from care_qdrant.bulk.job import Job, Manifest, Receipt, Unit
from care_qdrant.bulk.units import read_unit
from care_qdrant.corpus.chunking import cut_documents
from care_qdrant.corpus.rows import Reject
from care_qdrant.encoders.ahead import run_ahead
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import FingerprintMismatch, NotVerified
from care_qdrant.ingestion.diff import ChunkTask, chunk_task
from care_qdrant.ingestion.pipeline import Maker, Rows, document_vectors, make_apart
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.qdrant.create import PointVectors
from care_qdrant.types import Chunk, Document, TermCounts, Vectors

ROW_GROUP = 1_024
"""Rows of a row group in a part; a loader holds one group in memory."""
CUT_DOCUMENTS = 512


def encode_unit(job: Job, manifest: Manifest, unit: Unit, model: DocumentModel, batch_tokens: int) -> Receipt:
    """Encode a unit: write its part, and then its receipt, which is returned."""
    if model.contract().fingerprint != manifest.fingerprint:
        raise FingerprintMismatch(
            f"{job.url}: is a job of model {manifest.model_name!r} ({manifest.fingerprint[:12]}), and this worker has "
            f"{model.name!r} ({model.contract().fingerprint[:12]})"
        )
    start = time.perf_counter()
    rejects: list[Reject] = []
    carried = PointVectors(manifest.vector_name, manifest.contract)
    tasks = [chunk_task(chunk, None, carried) for chunk in _chunks(job, manifest, unit, model, rejects)]
    tasks, vectors = _encode(tasks, document_vectors(model, manifest.dim), batch_tokens, rejects)
    chunks = [task.chunk for task in tasks]
    content = _parquet(tasks, vectors, manifest)
    if rejects:
        lines = [{"file": unit.label, "line": row.line, "id": row.id, "reason": row.reason} for row in rejects]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        job.write(f"rejects/{unit.name}.jsonl", text.encode())
    else:  # of an earlier run, whose encoder failed for a while
        job.remove(f"rejects/{unit.name}.jsonl")
    job.write(f"parts/{unit.name}.parquet", content)
    receipt = Receipt(
        unit=unit.name,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        documents=len({chunk.document.id for chunk in chunks}),
        chunks=len(chunks),
        tokens=sum(chunk.tokens for chunk in chunks),
        rejected=len(rejects),
        seconds=round(time.perf_counter() - start, 3),
        fingerprint=manifest.fingerprint,
    )
    job.write(f"receipts/{unit.name}.json", json.dumps(asdict(receipt)).encode())  # declares the unit done
    return receipt


def read_part(job: Job, manifest: Manifest, receipt: Receipt) -> Iterator[list[Chunk]]:
    """Yield the chunks of a part with their vectors, a row group at a time, after checking it against its receipt."""
    content = job.read(f"parts/{receipt.unit}.parquet")
    if content is None or hashlib.sha256(content).hexdigest() != receipt.sha256:
        problem = "is missing" if content is None else "is not the file of its receipt"
        raise NotVerified(
            f"{job.url}/parts/{receipt.unit}.parquet: {problem}; care bulk encode {job.url} makes it again once its "
            f"receipt, receipts/{receipt.unit}.json, is removed"
        )
    file = pq.ParquetFile(io.BytesIO(content))
    if receipt.fingerprint != manifest.fingerprint:
        raise FingerprintMismatch(
            f"{job.url}/parts/{receipt.unit}.parquet: was made by a model with fingerprint "
            f"{receipt.fingerprint[:12]!r}; the job is one of {manifest.model_name!r} ({manifest.fingerprint[:12]})"
        )
    for number in range(file.num_row_groups):
        table = file.read_row_group(number)
        flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors = np.ascontiguousarray(flat.reshape(len(table), manifest.dim), dtype=np.float32)
        rows = table.drop_columns(["vector"]).to_pylist()
        yield [replace(_chunk(row, manifest), vector=vector) for row, vector in zip(rows, vectors, strict=True)]


def _chunks(job: Job, manifest: Manifest, unit: Unit, model: DocumentModel, rejects: list[Reject]) -> Iterator[Chunk]:
    window: list[Document] = []

    def cut() -> Iterator[Chunk]:
        for cut_document in cut_documents(window, model.document_tokenizer, manifest.overflow):
            if isinstance(cut_document, Reject):
                rejects.append(cut_document)
            else:
                yield from cut_document
        window.clear()

    for row in read_unit(job, unit):
        if isinstance(row, Reject):
            rejects.append(row)
        else:
            window.append(row)
        if len(window) == CUT_DOCUMENTS:
            yield from cut()
    yield from cut()


def _encode(
    tasks: Sequence[ChunkTask], maker: Maker, batch_tokens: int, rejects: list[Reject]
) -> tuple[list[ChunkTask], Vectors]:
    """Return the tasks with their vectors, in order; documents with a text that has no usable vector are rejected."""
    vectors = np.zeros((len(tasks), maker.numbers), dtype=np.float32)
    reasons: dict[str, Reject] = {}

    def run(batch: list[int]) -> tuple[list[int], Rows, dict[int, str]]:
        return make_apart(maker.make, [tasks[index] for index in batch])

    for batch, (places, rows, failed) in run_ahead(maker.batches(tasks, batch_tokens), run, maker.calls):
        if places:
            vectors[[batch[place] for place in places]] = rows
        for place, reason in failed.items():
            document = tasks[batch[place]].chunk.document
            reasons[document.id] = Reject.of(document, reason)
    rejects += reasons.values()
    kept = [index for index, task in enumerate(tasks) if task.chunk.document.id not in reasons]
    return [tasks[index] for index in kept], vectors[kept]


def _parquet(tasks: Sequence[ChunkTask], vectors: Vectors, manifest: Manifest) -> bytes:
    chunks = [task.chunk for task in tasks]
    kind = pa.float16() if manifest.datatype == "float16" else pa.float32()
    flat = pa.array(vectors.astype(manifest.datatype).reshape(-1), type=kind)
    columns: dict[str, Any] = {
        "id": [chunk.document.id for chunk in chunks],
        "title": [chunk.document.title for chunk in chunks],
        "text": [chunk.text for chunk in chunks],
        "metadata": [json.dumps(dict(chunk.document.metadata), ensure_ascii=False) for chunk in chunks],
        "chunk": pa.array([chunk.number for chunk in chunks], type=pa.int32()),
        "chunks": pa.array([chunk.total for chunk in chunks], type=pa.int32()),
        "line": pa.array([chunk.document.line for chunk in chunks], type=pa.int64()),
        "tokens": pa.array([chunk.tokens for chunk in chunks], type=pa.int32()),
        "vector": pa.FixedSizeListArray.from_arrays(flat, manifest.dim),
    }
    if manifest.sparse is not None:
        analyser = manifest.sparse.analyser
        counts = [bm25.term_counts(chunk.embedded_text, lead=manifest.lead, analyser=analyser) for chunk in chunks]
        columns["terms"] = pa.array([list(terms) for terms in counts], type=pa.list_(pa.uint32()))
        columns["counts"] = pa.array([list(terms.values()) for terms in counts], type=pa.list_(pa.float64()))
    strings = ("id", "title", "text", "metadata")
    arrays = {
        name: pa.array(values, type=pa.string()) if name in strings else values for name, values in columns.items()
    }
    table = pa.table(arrays)
    file = io.BytesIO()
    # Vectors do not compress, and a dictionary of them would only cost time.
    plain = [name for name in arrays if name != "vector"]
    pq.write_table(
        table, file, row_group_size=ROW_GROUP, compression=dict.fromkeys(plain, "zstd"), use_dictionary=False
    )
    return file.getvalue()


def _chunk(row: dict[str, Any], manifest: Manifest) -> Chunk:
    metadata = cast(dict[str, Any], json.loads(row["metadata"]))
    document = Document(row["id"], row["text"], row["title"], metadata, row["line"])
    counted = dict(zip(row["terms"], row["counts"], strict=True)) if "terms" in row else None
    terms = None if counted is None else TermCounts(counted, manifest.lead, manifest.analyser)
    return Chunk(document, row["text"], row["chunk"], row["chunks"], row["tokens"], terms)
