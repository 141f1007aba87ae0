"""One run from loaded systems to a saved result: accuracy, speed, reference scores, report."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mteb.abstasks import AbsTask
from qdrant_client import QdrantClient

from care_benchmarks.evaluation import Outcome, compare, evaluate
from care_benchmarks.machine import describe_machine
from care_benchmarks.measures import Qrels, Run, ranked
from care_benchmarks.report import write_report
from care_benchmarks.results import Answer, PerQuery, Result, System, TaskInfo, WorstQuery, save_result
from care_benchmarks.search import ProgressBar, QdrantSearch, Through, quiet
from care_benchmarks.speed import SpeedSettings, measure_speed
from care_benchmarks.systems import EvaluatedSystem
from care_benchmarks.tasks import LoadedTask, load_task

logger = logging.getLogger(__name__)

_PAPER_TASKS = {
    "CMedQAv1-reranking",
    "CMedQAv2-reranking",
    "CMedTEB-Retrieval",
    "CMedTEB-Rerank",
    "CMedTEB-STS-qd",
}
"""Tasks of arXiv 2604.10937."""

QUERIES_PER_TASK = 10
ANSWERS = 5
LONGEST_TEXT = 240
"""Maximal number of characters that are shown of a text."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run; all of them are saved with the result."""

    through: Through = "llama-index"
    """Path of dense queries."""
    speed: SpeedSettings | None = field(default_factory=SpeedSettings)
    """Settings of the measurement of speed; None measures none."""
    texts: bool = True
    """Whether the worst queries are shown with their texts."""


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
        logger.info("%s: tasks: %d", system.name, len(loaded))
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
        notes=list(notes_for([outcome.search for outcome in outcomes], infos)),
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


def worst_queries(
    entry: PerQuery, measure: str, run: Run, qrels: Qrels, queries: Mapping[str, str], documents: Mapping[str, str]
) -> list[WorstQuery]:
    """Return the worst queries of one system on one task, worst first; ties keep their order."""
    scores = dict(zip(entry.queries, entry.scores[measure], strict=True))
    worst = []
    for query in sorted(scores, key=lambda name: scores[name])[:QUERIES_PER_TASK]:
        grades, answers = qrels[query], run.get(query, {})
        shown = [
            Answer(rank, name, answers[name], grades.get(name), _shortened(documents[name]))
            for rank, name in enumerate(ranked(answers)[:ANSWERS], start=1)
        ]
        right = sorted((name for name, grade in grades.items() if grade > 0), key=lambda name: -grades[name])
        relevant = [_shortened(documents[name]) for name in right[:ANSWERS]]
        worst.append(WorstQuery(entry.task, query, _shortened(queries[query]), scores[query], shown, relevant))
    return worst


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def notes_for(searches: Sequence[QdrantSearch], tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield the cautions that apply to this run."""
    if own := [task.name for task in tasks if task.name not in _PAPER_TASKS]:
        yield f"{', '.join(own)}: shaped like the paper's tasks, with other data: its figures are not comparable."
    if any(task.kind != "sts" for task in tasks):
        yield (
            "A relevant document that was not judged counts as wrong, so differences between systems are safer to read "
            "than the figures themselves."
        )
    systems = [search.system for search in searches]
    if any(system.model.card and system.mode == "dense" for system in systems):
        yield (
            "Symmetric controls are a model's own two encoders, without a further step: controls of the architecture, "
            "not of equal training compute."
        )
    if any(task.kind == "sts" for task in tasks) and any(system.model.card for system in systems):
        yield (
            "STS is shown for each choice of encoders (qd: first sentence by the query encoder, second by the document "
            "encoder; qq; dd), since the paper does not say which it took."
        )
