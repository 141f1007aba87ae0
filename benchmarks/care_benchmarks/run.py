"""One run from loaded systems to a saved result: accuracy, speed, reference scores, report."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mteb.abstasks import AbsTask
from qdrant_client import QdrantClient

from care_benchmarks.evaluation import Outcome, compare, evaluate
from care_benchmarks.machine import describe_machine
from care_benchmarks.mteb_reference import measure_reference
from care_benchmarks.notes import notes_for
from care_benchmarks.query_paths import Through
from care_benchmarks.report import write_report
from care_benchmarks.results import Result, System, TaskInfo, WorstQuery, save_result
from care_benchmarks.search import ProgressBar, QdrantSearch, quiet
from care_benchmarks.speed import SpeedSettings, measure_speed
from care_benchmarks.systems import EvaluatedSystem
from care_benchmarks.tasks import LoadedTask, load_task
from care_benchmarks.worst import worst_queries

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run; all of them are saved with the result."""

    through: Through = "llama-index"
    """Path of dense queries."""
    speed: SpeedSettings | None = field(default_factory=SpeedSettings)
    """None measures no speed."""
    mteb_reference: bool = False
    """Evaluate dense systems with mteb's own runner as well."""
    texts: bool = True
    """Show the worst queries with their texts."""


def run(
    name: str,
    systems: Sequence[EvaluatedSystem],
    tasks: Sequence[AbsTask],
    client: QdrantClient,
    output: Path,
    *,
    settings: RunSettings,
    command: str,
    store: Path | None = None,
    progress: ProgressBar = quiet,
) -> Result:
    """Evaluate all systems on all tasks, and write the result into ``output``."""
    loaded = [load_task(task) for task in tasks]
    outcomes = []
    for system in systems:
        logger.info("%s: %d tasks", system.name, len(loaded))
        search = QdrantSearch(system, client, through=settings.through, progress=progress)
        outcomes.append(evaluate(search, loaded, output))
    infos = [_describe(task) for task in loaded]
    result = Result(
        name=name,
        command=command,
        machine=describe_machine(),
        settings=asdict(settings),
        tasks=infos,
        systems=[_system(outcome, loaded, settings, store) for outcome in outcomes],
        comparisons=compare(outcomes, loaded),
        notes=notes_for([outcome.search for outcome in outcomes], infos),
        mteb_reference=measure_reference(outcomes, loaded) if settings.mteb_reference else [],
        worst=_worst(outcomes[0], loaded) if settings.texts else [],
    )
    save_result(result, [entry for outcome in outcomes for entry in outcome.per_query], output)
    write_report(result, output)
    return result


def _describe(task: LoadedTask) -> TaskInfo:
    queries = len(task.labels) if task.kind == "sts" else len(task.qrels)
    return TaskInfo(task.name, task.kind, task.measure, task.revision, queries, len(task.documents))


def _system(outcome: Outcome, tasks: Sequence[LoadedTask], settings: RunSettings, store: Path | None) -> System:
    system, speed = outcome.search.system, None
    ranking = next((task for task in tasks if task.kind != "sts"), None)
    if settings.speed and ranking:
        logger.info("%s: measuring speed", system.name)
        speed = measure_speed(outcome.search, ranking, settings.speed, store)
    return System(
        name=system.name,
        description=system.description,
        fingerprint=system.fingerprint,
        dim=system.dim,
        query_parameters=system.query_parameters,
        document_parameters=system.document_parameters,
        scores=outcome.scores,
        indexing=list(outcome.search.indexed.values()),
        speed=speed,
    )


def _worst(outcome: Outcome, tasks: Sequence[LoadedTask]) -> list[WorstQuery]:
    entries = {entry.task: entry for entry in outcome.per_query}
    return [
        query
        for task in tasks
        if task.name in outcome.runs
        for query in worst_queries(
            entries[task.name], task.measure, outcome.runs[task.name], task.qrels, task.queries, task.documents
        )
    ]
