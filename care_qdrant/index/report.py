"""What an ingestion says of itself while it runs and when it is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from care_qdrant.encoders.ahead import Meter
from care_qdrant.progress import Progress


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


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What a run did. Chunks are encoded, updated or unchanged; each is one point."""

    documents: int
    """Read and accepted, each id once."""
    chunks: int
    encoded: int
    """Chunks that the encoder read; those of a run that was stopped may not all be stored."""
    updated: int
    """Chunks written without encoding: only their metadata or their sparse vector differed."""
    unchanged: int
    duplicates: int
    """Rows that repeat an earlier one word for word."""
    rejected: int
    deleted: int
    other_points: int
    """Points of the same documents that another writer made under other ids."""
    points: int
    """Points of the collection with this vector, counted exactly; of a stopped run those that it stored or found."""
    tokens: int
    """Encoded."""
    seconds: float
    documents_per_second: float
    tokens_per_second: float
    """Over the time from the first to the end of the last encoding."""
    encoder_idle_fraction: float
    """Fraction of that time in which the encoder stood still, in [0, 1]."""
    collection: str
    vector_name: str
    fingerprint: str
    rejects_file: str | None = None
    estimate: Estimate | None = None
    """Result of a dry run, which wrote nothing."""
    first_rejects: tuple[str, ...] = ()
    """Line and reason of the first rejected rows."""
    first_deleted: tuple[str, ...] = ()
    """First of the documents that --sync deleted, or would delete."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """What encoded, and how: device and kernels, or what each server did; empty where nothing was encoded."""
    stopped: str | None = None
    """Why the run did not finish: what was refused, or the interruption. None for a run that did."""


@dataclass(slots=True)
class Tally:
    """The counts of a run in progress."""

    documents: int = 0
    encoded: int = 0
    updated: int = 0
    unchanged: int = 0
    duplicates: int = 0
    rejected: int = 0
    inserted: int = 0
    deleted: int = 0
    other_points: int = 0
    tokens: int = 0
    planned: int = 0
    """Chunks that were read and compared."""
    planned_tokens: int = 0
    """Of those that are to be encoded."""
    first_rejects: list[str] = field(default_factory=list)
    first_deleted: list[str] = field(default_factory=list)

    def progress(
        self, stored: int, share_read: float | None, limit: float | None, work: Meter, device: Meter
    ) -> Progress:
        """Return the state of the run."""
        tokens_per_second = work.tokens_per_second
        stored += self.unchanged
        expected = self.documents / share_read if share_read else None
        expected = min(filter(None, (expected, limit)), default=None)
        total = left = None
        if expected and self.planned:
            total = max(self.planned, round(self.planned * expected / self.documents))
            if tokens_per_second:
                tokens = self.planned_tokens * total / self.planned - self.tokens
                left = max(0.0, tokens / tokens_per_second)
        texts_per_second = work.texts / work.total_seconds if work.total_seconds else 0.0
        return Progress(
            documents=self.documents,
            stored=stored,
            encoded=self.encoded,
            rejected=self.rejected,
            tokens_per_second=tokens_per_second,
            documents_per_second=texts_per_second * self.documents / max(self.planned, 1),
            padding=work.padding,
            idle_fraction=device.idle_fraction,
            total=total,
            seconds_left=left,
            share_read=share_read,
        )

    @property
    def chunks(self) -> int:
        """All that were read."""
        return self.encoded + self.updated + self.unchanged
