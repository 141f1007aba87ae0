"""Comparison of saved results, paired query by query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.results import PerQuery, Result, TaskInfo, load_per_query, load_result
from care_benchmarks.statistics import Comparison, Interval, compare_with_base, mean_interval
from care_qdrant.errors import InputError


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """Comparison on one task that all results have."""

    task: str
    measure: str
    scores: dict[str, float]
    """Mean scores, keyed as ``result/system``."""
    intervals: dict[str, Interval]
    """Confidence intervals of the scores, under the same keys."""
    comparisons: list[Comparison]
    """Comparisons with the first system of the first result."""


def compare_results(folders: Sequence[Path]) -> list[TaskComparison]:
    """Compare every system of every result with the first system of the first one."""
    saved = {_label(folder, folders): (load_result(folder), load_per_query(folder)) for folder in folders}
    first = next(iter(saved.values()))[0]
    tasks = [task for task in first.tasks if all(_find(result, task.name) for result, _ in saved.values())]
    if not tasks:
        raise InputError(f"{', '.join(map(str, folders))}: have no task in common")
    return [_compare(task, saved) for task in tasks]


def _compare(task: TaskInfo, saved: Mapping[str, tuple[Result, list[PerQuery]]]) -> TaskComparison:
    entries: dict[str, PerQuery] = {}
    for label, (result, per_query) in saved.items():
        info = _find(result, task.name)
        if info is None or info.revision != task.revision:
            raise InputError(
                f"{label}: task {task.name} has other data ({info and info.revision[:12]}, not "
                f"{task.revision[:12]}); scores over different queries cannot be paired"
            )
        entries |= {f"{label}/{entry.system}": entry for entry in per_query if entry.task == task.name}
    base, first = next(iter(entries.items()))
    scores = {name: _in_order(entry, first.queries, task.measure, name) for name, entry in entries.items()}
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    intervals = {name: mean_interval(values) for name, values in scores.items()}
    return TaskComparison(task.name, task.measure, means, intervals, compare_with_base(base, scores))


def _in_order(entry: PerQuery, queries: Sequence[str], measure: str, name: str) -> list[float]:
    """Return the scores of an entry in the order of these queries."""
    of_query = dict(zip(entry.queries, entry.scores.get(measure, ()), strict=False))
    if of_query.keys() != set(queries):
        raise InputError(f"{name}: has {measure} of other queries on task {entry.task}; scores cannot be paired")
    return [of_query[query] for query in queries]


def _find(result: Result, task: str) -> TaskInfo | None:
    return next((info for info in result.tasks if info.name == task), None)


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """Return the name of the folder, or its whole path if two folders have the same name."""
    names = [other.resolve().name for other in folders]
    return str(folder) if names.count(folder.resolve().name) > 1 else folder.resolve().name
