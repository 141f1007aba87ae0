"""Forecast of a job: tokens and hours from a sample that is encoded here, bytes and nodes from the size of points.

How many bytes a point takes follows from Qdrant's formats, and was measured with up to a million points; beyond, it is
extrapolated along a straight line, and the report says so.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from care_qdrant.bulk.job import Manifest
from care_qdrant.corpus.chunking import cut_documents
from care_qdrant.corpus.rows import Reject
from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.errors import InputError
from care_qdrant.ingestion.dry_run import payload_bytes, rounded
from care_qdrant.qdrant.quantization import QUANTIZATION
from care_qdrant.types import Chunk, Document

SAMPLE_DOCUMENTS = 1_024
"""Drawn from all documents; their tokens, chunks and payloads stand for those of all."""
TIMED_CHUNKS = 32
"""Encoded on this machine, to measure its speed."""
FILLED = 0.8
"""Fraction of a node's memory that data may take."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that was measured in this repository."""

    value: float
    unit: str
    measured: str
    """Result file and what it covers."""


_INDEX = "benchmarks/results/server-index-1000000.json: 1,000,000 points of 256 numbers, Qdrant 1.19"
_KINDS = "benchmarks/results/server-index-100000.json: 100,000 points of 256 numbers, Qdrant 1.19"
CONSTANTS = {
    "disk_bytes_beside_vector": Constant(85.9, "bytes a point", _INDEX),
    "memory_bytes_beside_vector": Constant(431.0, "bytes a point", f"{_INDEX}; the highest of three ways of storage"),
    "int8": Constant(1.029, "bytes a number of the vector", _KINDS),
    "turbo": Constant(0.546, "bytes a number of the vector", _KINDS),
    "product": Constant(0.318, "bytes a number of the vector", _KINDS),
    "binary": Constant(0.185, "bytes a number of the vector", _KINDS),
}


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """The machines that the job would run on, and how large it would be."""

    documents: int | None = None
    """Number of documents like these to extrapolate to; None takes those that are there."""
    tokens_per_second: float | None = None
    """Speed of one worker; None encodes a few chunks here."""
    workers: int = 1
    node_gib: float = 64.0
    """Memory of a node of the database, in GiB."""

    def __post_init__(self) -> None:
        if self.tokens_per_second is not None and self.tokens_per_second <= 0:
            raise InputError(f"--tokens-per-second is {self.tokens_per_second}; expected a number above 0")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Time, space and money that a job would take; nothing was written."""

    model: str
    documents: int
    sampled: int
    points: int
    tokens: int
    """Tokens to encode, overlaps of chunks included."""
    tokens_of_a_document: dict[str, float]
    """Quantiles over the sample, and ``share up to N`` for powers of two."""
    tokens_per_second: float
    """Speed of one worker."""
    workers: int
    encode_hours: float
    part_bytes: int
    """Bytes of all Parquet parts, without their compression."""
    payload_bytes: int
    disk_bytes: dict[str, int]
    """Bytes on disk of the database by way of storage, payloads and graph included; one copy."""
    memory_bytes: dict[str, int]
    """Memory of the database in bytes by way of storage, to answer from memory; one copy."""
    nodes: dict[str, int]
    """Nodes of the given memory, by way of storage; as many shards as nodes let each build its part of the graph."""
    constants: dict[str, Constant]
    extrapolated: bool
    """Whether this is beyond the million points that the constants were measured with."""


def forecast(
    documents: int,
    sample: Sequence[Document],
    manifest: Manifest,
    counter: TokenCounter,
    encoder: Callable[[], Encoder],
    settings: ForecastSettings,
) -> Forecast:
    """Say what a job would take."""
    cut = [each for each in cut_documents(sample, counter, manifest.overflow) if not isinstance(each, Reject)]
    chunks = [chunk for each in cut for chunk in each]
    if not chunks:
        raise InputError("no document could be encoded, so nothing can be foretold")
    documents = settings.documents or documents
    scale = documents / len(sample)
    lengths = np.array([sum(chunk.tokens for chunk in each) for each in cut])
    points, tokens = round(scale * len(chunks)), round(scale * lengths.sum())
    speed = settings.tokens_per_second or _speed(chunks, encoder())
    hours = tokens / speed / settings.workers / 3_600
    hashes = {manifest.vector_name: "0" * 32}
    # Of a point, the text is there already, and its hash is new.
    sizes = [64 if manifest.collection is not None else payload_bytes(chunk, hashes) for chunk in chunks]
    payload = round(points * float(np.mean(sizes)))
    beside = CONSTANTS["disk_bytes_beside_vector"].value * points
    memory = {name: round(points * size) for name, size in _sizes(manifest.dim, on_disk=False).items()}
    return Forecast(
        model=manifest.model_name,
        documents=documents,
        sampled=len(sample),
        points=points,
        tokens=tokens,
        tokens_of_a_document=_histogram(lengths),
        tokens_per_second=rounded(speed),
        workers=settings.workers,
        encode_hours=rounded(hours),
        part_bytes=round(points * manifest.vector_bytes + payload),
        payload_bytes=payload,
        disk_bytes={
            name: round(points * size + beside + payload) for name, size in _sizes(manifest.dim, on_disk=True).items()
        },
        memory_bytes=memory,
        nodes={name: math.ceil(size / (settings.node_gib * 2**30 * FILLED)) for name, size in memory.items()},
        constants=CONSTANTS,
        extrapolated=points > 1_000_000,
    )


def _sizes(dim: int, *, on_disk: bool) -> dict[str, float]:
    """Return bytes of a vector by way of storage: on disk, or in memory with what stands beside it."""
    beside = 0.0 if on_disk else CONSTANTS["memory_bytes_beside_vector"].value
    original = 4.0 if on_disk else 0.0
    bytes_of_a_number = {"float32": 4.0, "float16": 2.0, "float32 on disk": original} | {
        f"{kind}, originals on disk": original + CONSTANTS[kind].value for kind in QUANTIZATION if kind in CONSTANTS
    }
    return {name: size * dim + beside for name, size in bytes_of_a_number.items()}


def _histogram(lengths: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> dict[str, float]:
    # A sample without a text above a percentile does not have that percentile.
    known = [percent for percent in (90, 99) if len(lengths) * (100 - percent) >= 100]
    found = {"median": float(np.median(lengths))}
    found |= {f"{percent} %": float(np.percentile(lengths, percent)) for percent in known}
    found["longest"] = float(lengths.max())
    top = math.ceil(math.log2(max(2, lengths.max())))
    bounds = [2**power for power in range(max(0, top - 6), top + 1)]
    shares = {f"share up to {bound}": round(float((lengths <= bound).mean()), 4) for bound in bounds}
    return {"mean": round(float(lengths.mean()), 1)} | found | shares


def _speed(chunks: Sequence[Chunk], encoder: Encoder) -> float:
    """Return tokens a second of the encoder on this machine."""
    timed = chunks[:TIMED_CHUNKS]
    texts = [chunk.embedded_text for chunk in timed]
    encoder.encode(texts[:1])
    start = time.perf_counter()
    encoder.encode(texts)
    return sum(chunk.tokens for chunk in timed) / (time.perf_counter() - start)
