"""One run from loaded systems to a saved result: accuracy, speed, reference scores, report."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import mteb
from mteb.abstasks import AbsTask
from mteb.models.model_meta import ModelMeta
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from qdrant_client import QdrantClient

from care_benchmarks.evaluation import BATCH_TEXTS, Outcome, compare, evaluate
from care_benchmarks.machine import describe_machine
from care_benchmarks.measures import Qrels, Run, ranked
from care_benchmarks.paper import CMEDQA_1, CMEDQA_2, RERANK, RETRIEVAL, STS
from care_benchmarks.query_paths import Through
from care_benchmarks.report import write_report
from care_benchmarks.results import Answer, PerQuery, ReferenceScore, Result, System, TaskInfo, WorstQuery, save_result
from care_benchmarks.search import ProgressBar, QdrantSearch, prompts_by_type, quiet, scoring_function
from care_benchmarks.speed import SpeedSettings, measure_speed
from care_benchmarks.systems import EvaluatedSystem
from care_benchmarks.tasks import LoadedTask, load_task
from care_qdrant.encoders.torch import load_sentence_transformer
from care_qdrant.model.hub import fetch_document_side

logger = logging.getLogger(__name__)

_PAPER_TASKS = {CMEDQA_1, CMEDQA_2, RETRIEVAL, RERANK, STS}

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
        notes=list(notes_for([outcome.search for outcome in outcomes], infos)),
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


def measure_reference(outcomes: Sequence[Outcome], tasks: Sequence[LoadedTask]) -> list[ReferenceScore]:
    """Evaluate each dense system again with mteb alone, on the same loaded tasks.

    A pair is loaded as the stock sentence-transformers Router that its folder is, on torch in float32, so a difference
    shows what an int8 query encoder changes.
    """
    found = []
    for outcome in outcomes:
        system = outcome.search.system
        if system.mode != "dense":
            continue
        logger.info("%s: reference run by mteb", system.name)
        model = load_sentence_transformer(fetch_document_side(system.source), None)
        with warnings.catch_warnings():
            # mteb asks sentence-transformers for the dimension by a deprecated name.
            warnings.simplefilter("ignore", FutureWarning)
            # That it uses the prompts that it is given.
            warnings.filterwarnings("ignore", "Model prompts specified", UserWarning)
            wrapper = SentenceTransformerEncoderWrapper(model, model_prompts=prompts_by_type(system.model) or None)
        wrapper.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "mteb/reference", "similarity_fn_name": scoring_function(system.model)}
        )
        theirs = mteb.evaluate(
            wrapper,
            [task.task for task in tasks],
            cache=None,
            co2_tracker=False,
            show_progress_bar=False,
            encode_kwargs={"batch_size": BATCH_TEXTS, "show_progress_bar": False},
        )
        scores = {result.task_name: result.get_score() for result in theirs.task_results}
        for score in outcome.scores:
            found.append(ReferenceScore(system.name, score.task, score.value, scores[score.task]))
    return found


def worst_queries(
    entry: PerQuery, measure: str, run: Run, qrels: Qrels, queries: Mapping[str, str], documents: Mapping[str, str]
) -> list[WorstQuery]:
    """Return the worst queries of one system on one task, worst first; ties keep their order."""
    scores = dict(zip(entry.queries, entry.scores[measure], strict=True))
    found = []
    for query in sorted(scores, key=lambda name: scores[name])[:QUERIES_PER_TASK]:
        grades, answers = qrels[query], run.get(query, {})
        shown = [
            Answer(rank, name, answers[name], grades.get(name), _shortened(documents[name]))
            for rank, name in enumerate(ranked(answers)[:ANSWERS], start=1)
        ]
        right = sorted((name for name, grade in grades.items() if grade > 0), key=lambda name: -grades[name])
        wanted = [_shortened(documents[name]) for name in right[:ANSWERS]]
        found.append(WorstQuery(entry.task, query, _shortened(queries[query]), scores[query], shown, wanted))
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def notes_for(searches: Sequence[QdrantSearch], tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield the cautions that apply to this run."""
    if own := [task.name for task in tasks if task.name not in _PAPER_TASKS]:
        yield f"{', '.join(own)}: shaped like the paper's tasks, with other data: its figures are not comparable."
    if any(task.kind != "sts" for task in tasks):
        yield (
            "A relevant document that nobody judged counts as wrong, so differences between systems are safer to read "
            "than the figures themselves; care-bench audit exports what is worth judging."
        )
    systems = [search.system for search in searches]
    if any(system.model.card and system.mode == "dense" for system in systems):
        yield (
            "Symmetric controls are a pair's own two encoders, without a further step: controls of the architecture, "
            "not of equal training compute."
        )
    if any(task.kind == "sts" for task in tasks) and any(system.model.card for system in systems):
        yield (
            "STS is shown for each choice of encoders (qd: first sentence by the query encoder, second by the document "
            "encoder; qq; dd), since the paper does not say which it took."
        )
    if multiplied := [search.system.name for search in searches if search.multiplied]:
        yield (
            f"{', '.join(multiplied)}: answered by one matrix product over the stored vectors, checked on the first "
            "queries, since the embedded database compares sparse vectors in pure Python. Their speed is its own."
        )
