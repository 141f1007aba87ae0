"""What a run of the harness saves, and how it is read again.

A result folder holds ``result.json`` (small, for people and for `care-bench compare`), ``per_query.json`` (every score
of every query, for statistics later), ``report.md``, ``report.html``, and mteb's own result cache under ``mteb/``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from care_benchmarks.instructions import Kind
from care_benchmarks.machine import Machine
from care_benchmarks.speed import Speed
from care_benchmarks.statistics import Comparison, Interval
from care_qdrant.errors import InputError

T = TypeVar("T")

RESULT_FILE = "result.json"
PER_QUERY_FILE = "per_query.json"


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task, as it was read."""

    name: str
    kind: Kind
    measure: str
    """The one that the paper reports for this kind."""
    revision: str
    """SHA-256 over the files, or the revision on the hub."""
    queries: int
    """Judged queries, or sentence pairs."""
    documents: int
    """Of the corpus; 0 for STS."""


@dataclass(frozen=True, slots=True)
class Score:
    """One system on one task."""

    task: str
    value: float
    """Of the task's own measure, from 0 to 1."""
    interval: Interval
    measures: dict[str, float]
    """All measures that were computed, by name."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a cheaper index costs: the same vectors, searched in another way."""

    variant: str
    task: str
    value: float
    difference: float
    """Against exact search over float32."""
    interval: Interval
    """Of the difference."""
    p_value: float
    overlap_at_10: float
    """Share of the exact ten that it finds."""
    bytes_per_vector: float


@dataclass(frozen=True, slots=True)
class Indexing:
    """What building the index of one task took."""

    task: str
    documents: int
    encoded: int
    """Documents that were new to the index; the others were there from an earlier run."""
    seconds: float


@dataclass(frozen=True, slots=True)
class System:
    """One thing that answers queries, with all that was measured of it."""

    name: str
    description: str
    fingerprint: str
    """Of the weights; of the analyser for BM25."""
    dim: int
    """0 where there is no dense vector."""
    query_parameters: int
    """Weights that a query passes through; 0 for BM25."""
    document_parameters: int
    scores: list[Score]
    indexing: list[Indexing] = field(default_factory=list)
    speed: Speed | None = None
    deltas: list[Delta] = field(default_factory=list)

    def score(self, task: str) -> Score | None:
        """Give the score on a task, None where it was not run."""
        return next((score for score in self.scores if score.task == task), None)


@dataclass(frozen=True, slots=True)
class Peer:
    """The same model on the same task by mteb's own runner: the two numbers must be equal."""

    system: str
    task: str
    here: float
    mteb: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One retrieved document of a query that went wrong."""

    rank: int
    document: str
    score: float
    grade: int | None
    """None where nobody judged it."""
    text: str


@dataclass(frozen=True, slots=True)
class WorstQuery:
    """A query that the base system answers badly, and what it gave."""

    task: str
    query: str
    text: str
    score: float
    answers: list[Answer]
    wanted: list[str]
    """Texts of the relevant documents, best grade first."""


@dataclass(frozen=True, slots=True)
class Result:
    """All of one run."""

    name: str
    command: str
    machine: Machine
    settings: dict[str, Any]
    """Every option that changes a number."""
    tasks: list[TaskInfo]
    systems: list[System]
    """The first one is the base of all comparisons."""
    comparisons: dict[str, list[Comparison]]
    """By task."""
    notes: list[str]
    peers: list[Peer] = field(default_factory=list)
    worst: list[WorstQuery] = field(default_factory=list)
    """Empty where the texts may not leave the machine."""
    format: int = 1


@dataclass(frozen=True, slots=True)
class PerQuery:
    """Scores of one system on one task: measure → score, in the order of ``queries``."""

    system: str
    task: str
    queries: list[str]
    scores: dict[str, list[float]]


_RESULT = TypeAdapter(Result)
_PER_QUERY = TypeAdapter(list[PerQuery])


def save_result(result: Result, per_query: list[PerQuery], folder: Path) -> None:
    """Write the two JSON files into a folder, created where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT_FILE).write_bytes(_RESULT.dump_json(result, indent=2) + b"\n")
    lines = (TypeAdapter(PerQuery).dump_json(entry).decode() for entry in per_query)
    (folder / PER_QUERY_FILE).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load_result(folder: Path) -> Result:
    """Read the result of a folder.

    Raises:
        InputError: it is not there, or not one that this version can read.
    """
    return _load(_RESULT, folder / RESULT_FILE)


def load_per_query(folder: Path) -> list[PerQuery]:
    """Read the scores per query of a folder.

    Raises:
        InputError: they are not there, or not readable.
    """
    return _load(_PER_QUERY, folder / PER_QUERY_FILE)


def _load(adapter: TypeAdapter[T], path: Path) -> T:
    if not path.is_file():
        raise InputError(f"{path}: is not there; expected a folder that care-bench run wrote")
    try:
        return adapter.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {place}: {first['msg']}; written by another version?") from error
