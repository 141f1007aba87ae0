"""What an ingestion says of itself: counted while it runs, printed when it is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a dry run expects of the real one."""

    points: int
    """Points to write."""
    tokens: int
    """Tokens to encode."""
    bytes: int
    """Size of vectors and payloads to write, without indexes."""
    seconds: float | None
    """Time of encoding with this engine, at the speed that was measured; None where nothing is to be encoded."""
    hours: float | None = None
    cost: float | None = None
    """Hours times the price of an hour, in its currency; None without a price."""
    tokens_per_second: float | None = None
    documents_per_second: float | None = None
    padding: float | None = None
    """Padded tokens for each token, 1 or more."""
    encoder_idle_fraction: float | None = None
    """Fraction of the time in which the encoder stood still, in [0, 1]."""


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """What a run did, or has done so far. Chunks are encoded, updated or unchanged; each is one point."""

    documents: int = 0
    """Read and accepted, each id once."""
    chunks: int = 0
    encoded: int = 0
    """Chunks that the encoder read; those of a run that was stopped may not all be stored."""
    updated: int = 0
    """Chunks written without encoding: only their metadata or their sparse vector differed."""
    unchanged: int = 0
    duplicates: int = 0
    """Rows that repeat an earlier one word for word."""
    rejected: int = 0
    deleted: int = 0
    other_points: int = 0
    """Points of the same documents that another writer made under other ids."""
    points: int = 0
    """Points of the collection with this vector, counted exactly; of a stopped run those that it stored or found."""
    tokens: int = 0
    """Encoded."""
    seconds: float = 0.0
    documents_per_second: float = 0.0
    tokens_per_second: float = 0.0
    """Over the time from the first to the end of the last encoding."""
    encoder_idle_fraction: float = 0.0
    """Fraction of that time in which the encoder stood still, in [0, 1]."""
    collection: str
    vector_name: str
    fingerprint: str
    rejects_file: str | None = None
    estimate: Estimate | None = None
    """Result of a dry run, which wrote nothing."""
    first_rejects: list[str] = field(default_factory=list)
    """Line and reason of the first rejected rows."""
    first_deleted: list[str] = field(default_factory=list)
    """First of the documents that --sync deleted, or would delete."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """What encoded, and how: device and kernels, or what each server did; empty where nothing was encoded."""
    stopped: str | None = None
    """Why the run did not finish: what was refused, or the interruption. None for a run that did."""
