"""What an ingestion says of itself while it runs and when it is done."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


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
    """Time of encoding on this machine, at the speed of a first batch; None where nothing is to be encoded."""
    hours: float | None = None
    cost: float | None = None
    """Hours times the price of an hour, in its currency; None without a price."""


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
    stopped: str | None = None
    """Why the run did not finish: what was refused, or the interruption. None for a run that did."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a run in progress."""

    documents: int
    """Read and compared."""
    stored: int
    """Chunks that Qdrant acknowledged, or had already."""
    encoded: int
    rejected: int
    tokens_per_second: float
    total: int | None
    """Chunks of the whole run, extrapolated from what was read; None where the length of the corpus is not known."""
    seconds_left: float | None
    """Time to encode the rest at the encoder's rate so far."""
    share_read: float | None
    """Fraction of the corpus that was read, in [0, 1]; None where its length is not known."""


class Stopwatch:
    """Measures how much of the time between its first start and its last stop it was running."""

    def __init__(self) -> None:
        self.running_seconds = 0.0
        self._first: float | None = None
        self._last = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run for the length of the block."""
        start = time.perf_counter()
        self._first = start if self._first is None else self._first
        yield
        self._last = time.perf_counter()
        self.running_seconds += self._last - start

    @property
    def total_seconds(self) -> float:
        """Seconds from the first start to the last stop."""
        return 0.0 if self._first is None else self._last - self._first

    @property
    def idle_fraction(self) -> float:
        """Fraction of the total in which it was not running, in [0, 1]."""
        return 1 - self.running_seconds / self.total_seconds if self.total_seconds else 0.0


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

    def progress(
        self, stored: int, tokens_per_second: float, share_read: float | None, limit: float | None
    ) -> Progress:
        """Return the state of the run.

        Args:
            stored: Points that were acknowledged in this run.
            tokens_per_second: Rate of the encoder.
            share_read: Fraction of the corpus that was read, in [0, 1].
            limit: Most documents that the run reads.
        """
        stored += self.unchanged
        expected = self.documents / share_read if share_read else None
        expected = min(filter(None, (expected, limit)), default=None)
        total = left = None
        if expected and self.planned:
            total = max(self.planned, round(self.planned * expected / self.documents))
            if tokens_per_second:
                tokens = self.planned_tokens * total / self.planned - self.tokens
                left = max(0.0, tokens / tokens_per_second)
        return Progress(self.documents, stored, self.encoded, self.rejected, tokens_per_second, total, left, share_read)

    @property
    def chunks(self) -> int:
        """All that were read."""
        return self.encoded + self.updated + self.unchanged
