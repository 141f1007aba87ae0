"""The data that a run saves, and their reader.

A result folder holds ``result.json`` (small, for people and for `care-bench compare`), ``per_query.json`` (the scores
of all queries), ``report.md``, ``report.html``, the rankings under ``runs/`` and mteb's result cache under ``mteb/``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from care_benchmarks.machine import Machine
from care_benchmarks.measures import Kind
from care_benchmarks.statistics import Comparison, Interval
from care_qdrant.errors import InputError, redact

T = TypeVar("T")

RESULT_FILE = "result.json"
PER_QUERY_FILE = "per_query.json"


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Description of one task."""

    name: str
    kind: Kind
    measure: str
    """The measure that the paper reports for this kind."""
    revision: str
    """SHA-256 over the files, or the revision on the hub."""
    queries: int
    """Number of judged queries, or of sentence pairs."""
    documents: int
    """Number of documents in the corpus; 0 for STS."""


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of one system on one task."""

    task: str
    value: float
    """Main measure of the task, from 0 to 1."""
    interval: Interval
    measures: dict[str, float]
    """All computed measures by name."""


@dataclass(frozen=True, slots=True)
class Indexing:
    """Cost of building the index of one task."""

    task: str
    documents: int
    encoded: int
    """Documents that were new to the index; the others were stored by an earlier run."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Durations of single calls."""

    samples: int
    mean_ms: float
    p50_ms: float
    p95_ms: float | None = None
    """95th percentile in milliseconds; None for fewer than 20 calls, which have none."""
    p99_ms: float | None = None
    """99th percentile in milliseconds; None for fewer than 100 calls."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Throughput and latency at one number of concurrent clients."""

    concurrency: int
    queries_per_second: float
    latency: Latency


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Cost from the start of the interpreter to the first query vector."""

    wall_seconds: float
    cpu_seconds: float
    peak_memory_mib: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed of one system."""

    path: str
    """Description of the code path that was timed."""
    warm_up_queries: int
    whole: list[LoadPoint]
    """Text in, hits out."""
    encode: Latency | None
    """Text to vector, one query at a time; None for BM25."""
    search: Latency | None
    """Vector to hits, one query at a time; None if it cannot be separated."""
    cold_start: ColdStart | None
    documents_per_second: float | None
    """Rate of reading, encoding and writing; None if the index existed already."""
    index_bytes_per_document: float | None
    """Disk space, text and payload included; None on a server."""


@dataclass(frozen=True, slots=True)
class System:
    """One evaluated system with all its measurements."""

    name: str
    description: str
    fingerprint: str
    """Fingerprint of the weights; name of the analyser for BM25."""
    dim: int
    """Length of the dense vector; 0 if there is none."""
    query_parameters: int
    """Weights that a query passes through; 0 for BM25."""
    document_parameters: int
    scores: list[Score]
    indexing: list[Indexing] = field(default_factory=list)
    speed: Speed | None = None

    def score(self, task: str) -> Score | None:
        """Return the score on a task, or None if the system was not run on it."""
        return next((score for score in self.scores if score.task == task), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """One retrieved document of a badly answered query."""

    rank: int
    document: str
    score: float
    grade: int | None
    """Grade of the document; None if it is not judged."""
    text: str


@dataclass(frozen=True, slots=True)
class WorstQuery:
    """A query that the base system answers badly, with its answers."""

    task: str
    query: str
    text: str
    score: float
    answers: list[Answer]
    wanted: list[str]
    """Texts of the relevant documents, highest grade first."""


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that one run measured."""

    name: str
    command: str
    machine: Machine
    settings: dict[str, Any]
    """Every option that changes a number."""
    tasks: list[TaskInfo]
    systems: list[System]
    """The first system is the base of all comparisons."""
    comparisons: dict[str, list[Comparison]]
    """Comparisons by task."""
    notes: list[str]
    worst: list[WorstQuery] = field(default_factory=list)
    """Worst queries of the first system, with texts; empty if these may not leave the machine."""
    format: int = 1


@dataclass(frozen=True, slots=True)
class PerQuery:
    """Scores of one system on one task: measure → scores, in the order of ``queries``."""

    system: str
    task: str
    queries: list[str]
    scores: dict[str, list[float]]


_RESULT = TypeAdapter(Result)
_PER_QUERY = TypeAdapter(list[PerQuery])


def save_result(result: Result, per_query: list[PerQuery], folder: Path) -> None:
    """Write the two JSON files into a folder, which is created if it is missing; without secrets."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT_FILE).write_text(redact(_RESULT.dump_json(result, indent=2).decode()) + "\n", encoding="utf-8")
    lines = (TypeAdapter(PerQuery).dump_json(entry).decode() for entry in per_query)
    (folder / PER_QUERY_FILE).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load_result(folder: Path) -> Result:
    """Read the result of a folder."""
    return _load(_RESULT, folder / RESULT_FILE)


def load_per_query(folder: Path) -> list[PerQuery]:
    """Read the scores per query of a folder."""
    return _load(_PER_QUERY, folder / PER_QUERY_FILE)


def _load(adapter: TypeAdapter[T], path: Path) -> T:
    if not path.is_file():
        raise InputError(f"{path}: does not exist; expected a result folder of care bench run")
    try:
        return adapter.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        what = f"{place} is missing or of another kind" if place else "is not JSON, or not an object"
        raise InputError(f"{path}: {what}; was it written by another version?") from error
