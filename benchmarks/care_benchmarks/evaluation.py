"""Evaluation of one system by mteb over loaded tasks, with scores and intervals per query."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mteb
import numpy as np

from care_benchmarks.measures import Run, pearson_shares, per_query, ranked, spearman
from care_benchmarks.results import PerQuery, Score
from care_benchmarks.search import QdrantSearch, file_name
from care_benchmarks.statistics import Comparison, compare_with_base, mean_interval, pearson_interval
from care_benchmarks.tasks import LoadedTask

logger = logging.getLogger(__name__)

BATCH_TEXTS = 64
"""Sentences per STS batch; documents are batched by tokens during ingestion."""
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Outcome:
    """Scores and rankings of one system on its tasks."""

    search: QdrantSearch
    scores: list[Score]
    per_query: list[PerQuery]
    runs: dict[str, Run]
    """Rankings by task; STS has none."""


def evaluate(search: QdrantSearch, tasks: Sequence[LoadedTask], output: Path) -> Outcome:
    """Evaluate one system with mteb; BM25 and hybrids have no vectors for STS and skip it."""
    own = [task for task in tasks if search.system.mode == "dense" or task.kind != "sts"]
    folder = output / "runs" / file_name(search.system.name)
    for task in own:
        # mteb adds to the file of an earlier run.
        (folder / f"{task.name}_predictions.json").unlink(missing_ok=True)
        (folder / f"{task.name}.trec").unlink(missing_ok=True)
    mteb.evaluate(
        search,
        [task.task for task in own],
        cache=mteb.ResultCache(output / "mteb"),
        # The cache may come from other code; a result may hold only what this run measured.
        overwrite_strategy="always",
        prediction_folder=folder,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"batch_size": BATCH_TEXTS, "show_progress_bar": False},
    )
    outcome = Outcome(search, [], [], {})
    for task in own:
        predictions = _predictions(task, folder)
        score_task = _score_sts if task.kind == "sts" else _score_ranking
        score, entry = score_task(search.system.name, task, predictions)
        outcome.scores.append(score)
        outcome.per_query.append(entry)
        if task.kind != "sts":
            outcome.runs[task.name] = predictions
            write_trec(predictions, folder / f"{task.name}.trec", file_name(search.system.name))
    return outcome


def write_trec(run: Run, path: Path, system: str) -> None:
    """Write a ranking as a TREC run file, unless an id holds a blank, which separates the fields there."""
    names = {name for query, answers in run.items() for name in (query, *answers)}
    if blank := min((name for name in names if name.split() != [name]), default=None):
        logger.warning("%s: not written, since a TREC run file cannot hold the id %r", path, blank)
        return
    lines = (
        f"{query} Q0 {document} {rank} {answers[document]!r} {system}\n"
        for query, answers in run.items()
        for rank, document in enumerate(ranked(answers), start=1)
    )
    path.write_text("".join(lines), encoding="utf-8")


def compare(outcomes: Sequence[Outcome], tasks: Sequence[LoadedTask]) -> dict[str, list[Comparison]]:
    """Compare all systems with the first one, task by task."""
    comparisons = {}
    for task in tasks:
        scores = {
            outcome.search.system.name: entry.scores[task.measure]
            for outcome in outcomes
            for entry in outcome.per_query
            if entry.task == task.name
        }
        base = outcomes[0].search.system.name
        if base in scores and len(scores) > 1:
            comparisons[task.name] = compare_with_base(base, scores)
    return comparisons


def _score_ranking(system: str, task: LoadedTask, run: Run) -> tuple[Score, PerQuery]:
    by_measure = per_query(task.qrels, run)
    values = {measure: list(scores.values()) for measure, scores in by_measure.items()}
    means = {measure: float(np.mean(scores)) for measure, scores in values.items()}
    rounded = {measure: _rounded(scores) for measure, scores in values.items()}
    score = Score(task.name, means[task.measure], mean_interval(values[task.measure]), means)
    return score, PerQuery(system, task.name, list(by_measure[task.measure]), rounded)


def _score_sts(system: str, task: LoadedTask, predictions: Any) -> tuple[Score, PerQuery]:
    labels, similarities = task.labels, predictions["cosine_scores"]
    shares = pearson_shares(labels, similarities)
    means = {"Pearson": float(shares.mean()), "Spearman": spearman(labels, similarities)}
    rounded = {"Pearson": _rounded(shares.tolist()), "similarity": _rounded(similarities)}
    score = Score(task.name, means["Pearson"], pearson_interval(labels, similarities), means)
    return score, PerQuery(system, task.name, [str(number) for number in range(len(labels))], rounded)


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]


def _predictions(task: LoadedTask, folder: Path) -> Any:
    saved = json.loads((folder / f"{task.name}_predictions.json").read_text(encoding="utf-8"))
    return saved[task.task.hf_subsets[0]][task.task.eval_splits[0]]
