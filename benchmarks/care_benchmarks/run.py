"""One run from loaded models to a saved result: accuracy, then speed, then the cheaper indexes, then the report."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mteb.abstasks import AbsTask
from qdrant_client import QdrantClient

from care_benchmarks.answerers import Through
from care_benchmarks.contestants import Contestant
from care_benchmarks.evaluation import Outcome, compare, evaluate
from care_benchmarks.fetch import first_line
from care_benchmarks.instructions import Instructions
from care_benchmarks.machine import describe_machine
from care_benchmarks.notes import notes_for
from care_benchmarks.peers import measure_peers
from care_benchmarks.report import write_report
from care_benchmarks.results import Delta, PerQuery, Result, System, TaskInfo, WorstQuery, save_result
from care_benchmarks.search import ProgressBar, QdrantSearch, quiet
from care_benchmarks.serving import SpeedSettings, measure_speed
from care_benchmarks.tasks import MAIN_MEASURE, kind_of, labels_of, qrels_of, texts_of
from care_benchmarks.variants import measure_variants, read_vectors
from care_benchmarks.worst import worst_queries
from care_qdrant.errors import CareError, InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run does; all of it is saved with the result."""

    through: Through = "llama-index"
    """How dense queries are answered."""
    instructions: Instructions = field(default_factory=Instructions)
    speed: SpeedSettings | None = field(default_factory=SpeedSettings)
    """None measures no speed."""
    variants: bool = False
    """Measure the cheaper indexes of the first contestant."""
    peers: bool = False
    """Run dense contestants by mteb's own runner as well."""
    texts: bool = True
    """Show the worst queries with their texts."""


def run(
    name: str,
    contestants: Sequence[Contestant],
    tasks: Sequence[AbsTask],
    client: QdrantClient,
    output: Path,
    *,
    settings: RunSettings,
    command: str,
    store: Path | None = None,
    progress: ProgressBar = quiet,
) -> Result:
    """Run everything, and write it into ``output``.

    Args:
        name: Of the run, for its report.
        contestants: The first one is the base of all comparisons.
        tasks: As `care_benchmarks.tasks` gives them; all are read and checked before anything is encoded.
        client: An open Qdrant. It may be full of other collections, and keeps ours for the next run.
        output: Folder of the result.
        settings: What to measure.
        command: The command line, for the report.
        store: Folder of the embedded database, to measure its size.
        progress: Opened for each corpus that is ingested.

    Raises:
        CareError: a task, a model or Qdrant is not as it must be.
    """
    for task in tasks:
        _load(task)
    outcomes = []
    for contestant in contestants:
        logger.info("%s: %d tasks", contestant.name, len(tasks))
        search = QdrantSearch(
            contestant, client, instructions=settings.instructions, through=settings.through, progress=progress
        )
        outcomes.append(evaluate(search, tasks, output))
    infos = [_describe(task) for task in tasks]
    result = Result(
        name=name,
        command=command,
        machine=describe_machine(),
        settings=asdict(settings),
        tasks=infos,
        systems=[
            _system(outcome, tasks, settings, store, is_first=not number) for number, outcome in enumerate(outcomes)
        ],
        comparisons=compare(outcomes, tasks),
        notes=notes_for([outcome.search for outcome in outcomes], infos),
        peers=measure_peers(outcomes, tasks) if settings.peers else [],
        worst=_worst(outcomes[0], tasks) if settings.texts else [],
    )
    save_result(result, [entry for outcome in outcomes for entry in outcome.per_query], output)
    write_report(result, output)
    return result


def _load(task: AbsTask) -> None:
    try:
        task.load_data()
    except CareError:
        raise
    except Exception as error:  # A hub, its cache and its loaders fail in many ways, all of them outside of here.
        name = task.metadata.name
        raise InputError(
            f"{name}: its data cannot be loaded ({type(error).__name__}: {first_line(error)}); "
            f"care-bench fetch {name} says whether they can be had"
        ) from error


def _describe(task: AbsTask) -> TaskInfo:
    kind, revision = kind_of(task), str(task.metadata.dataset["revision"])
    if kind == "sts":
        return TaskInfo(task.metadata.name, kind, MAIN_MEASURE[kind], revision, len(labels_of(task)), 0)
    documents = len(texts_of(task)[1])
    return TaskInfo(task.metadata.name, kind, MAIN_MEASURE[kind], revision, len(qrels_of(task)), documents)


def _system(
    outcome: Outcome, tasks: Sequence[AbsTask], settings: RunSettings, store: Path | None, *, is_first: bool
) -> System:
    contestant = outcome.search.contestant
    speed = None
    ranking = next((task for task in tasks if kind_of(task) != "sts"), None)
    if settings.speed and ranking:
        logger.info("%s: measuring speed", contestant.name)
        speed = measure_speed(outcome.search, ranking, settings.speed, store)
    return System(
        name=contestant.name,
        description=contestant.description,
        fingerprint=contestant.fingerprint,
        dim=contestant.dim,
        query_parameters=contestant.query_parameters,
        document_parameters=contestant.document_parameters,
        scores=outcome.scores,
        indexing=list(outcome.search.indexed.values()),
        speed=speed,
        deltas=_deltas(outcome, tasks) if settings.variants and is_first else [],
    )


def _deltas(outcome: Outcome, tasks: Sequence[AbsTask]) -> list[Delta]:
    search, found = outcome.search, list[Delta]()
    for task in tasks:
        if kind_of(task) != "retrieval":
            continue
        logger.info("%s: cheaper indexes of %s", search.contestant.name, task.metadata.name)
        queries = texts_of(task)[0]
        model = search.model_for(task.metadata)
        vectors = dict(zip(queries, model.encode_query(list(queries.values())), strict=True))
        documents, stored = read_vectors(search.client, search.collection(task.metadata), model.name)
        found += measure_variants(
            task.metadata.name, MAIN_MEASURE["retrieval"], documents, stored, vectors, qrels_of(task)
        )
    return found


def _worst(outcome: Outcome, tasks: Sequence[AbsTask]) -> list[WorstQuery]:
    found: list[WorstQuery] = []
    for task in tasks:
        name = task.metadata.name
        if name in outcome.runs:
            queries, documents = texts_of(task)
            entry: PerQuery = next(entry for entry in outcome.per_query if entry.task == name)
            measure = MAIN_MEASURE[kind_of(task)]
            found += worst_queries(entry, measure, outcome.runs[name], qrels_of(task), queries, documents)
    return found
