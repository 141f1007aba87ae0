"""Lets mteb run a contestant over loaded tasks, and scores each query of each ranking."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from mteb.abstasks import AbsTask

from care_benchmarks.measures import Run, pearson_shares, per_query, spearman
from care_benchmarks.results import PerQuery, Score
from care_benchmarks.search import QdrantSearch, file_name
from care_benchmarks.statistics import Comparison, compare_with_base, mean_interval, pearson_interval
from care_benchmarks.tasks import MAIN_MEASURE, kind_of, labels_of, qrels_of

BATCH_TEXTS = 64
"""Sentences of one STS batch; documents are batched by their tokens, in ingestion."""
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Outcome:
    """One contestant after all of its tasks."""

    search: QdrantSearch
    scores: list[Score]
    per_query: list[PerQuery]
    runs: dict[str, Run]
    """By task: the rankings; none for STS."""


def evaluate(search: QdrantSearch, tasks: Sequence[AbsTask], output: Path) -> Outcome:
    """Let mteb run one contestant over loaded tasks; BM25 and hybrids have no vectors to compare in STS.

    Args:
        search: The contestant.
        tasks: All tasks of the run.
        output: The result folder; mteb's cache goes to ``mteb/``, the rankings to ``runs/``.
    """
    own = [task for task in tasks if search.contestant.mode == "dense" or kind_of(task) != "sts"]
    folder = output / "runs" / file_name(search.contestant.name)
    for task in own:
        # mteb adds to the file of an earlier run.
        (folder / f"{task.metadata.name}_predictions.json").unlink(missing_ok=True)
    mteb.evaluate(
        search,
        own,
        cache=mteb.ResultCache(output / "mteb"),
        # What is in the cache may come from other code; only what this run measured may be in its result.
        overwrite_strategy="always",
        prediction_folder=folder,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"batch_size": BATCH_TEXTS, "show_progress_bar": False},
    )
    outcome = Outcome(search, [], [], {})
    for task in own:
        _add(outcome, task, _predictions(task, folder))
    return outcome


def compare(outcomes: Sequence[Outcome], tasks: Sequence[AbsTask]) -> dict[str, list[Comparison]]:
    """Compare all contestants with the first one, task by task."""
    found = {}
    for task in tasks:
        scores = {
            outcome.search.contestant.name: entry.scores[MAIN_MEASURE[kind_of(task)]]
            for outcome in outcomes
            for entry in outcome.per_query
            if entry.task == task.metadata.name
        }
        base = outcomes[0].search.contestant.name
        if base in scores and len(scores) > 1:
            found[task.metadata.name] = compare_with_base(base, scores)
    return found


def _add(outcome: Outcome, task: AbsTask, predictions: Any) -> None:
    if kind_of(task) == "sts":
        score, entry = _score_sts(outcome.search.contestant.name, task, predictions["cosine_scores"])
    else:
        score, entry = _score_ranking(outcome.search.contestant.name, task, predictions)
        outcome.runs[task.metadata.name] = predictions
    outcome.scores.append(score)
    outcome.per_query.append(entry)


def _score_ranking(system: str, task: AbsTask, run: Run) -> tuple[Score, PerQuery]:
    name, main = task.metadata.name, MAIN_MEASURE[kind_of(task)]
    by_measure = per_query(qrels_of(task), run)
    values = {measure: list(scores.values()) for measure, scores in by_measure.items()}
    means = {measure: float(np.mean(scores)) for measure, scores in values.items()}
    rounded = {measure: _rounded(scores) for measure, scores in values.items()}
    score = Score(name, means[main], mean_interval(values[main]), means)
    return score, PerQuery(system, name, list(by_measure[main]), rounded)


def _score_sts(system: str, task: AbsTask, similarities: Sequence[float]) -> tuple[Score, PerQuery]:
    name, labels = task.metadata.name, labels_of(task)
    shares = pearson_shares(labels, similarities)
    means = {"Pearson": float(shares.mean()), "Spearman": spearman(labels, similarities)}
    rounded = {"Pearson": _rounded(shares.tolist()), "similarity": _rounded(similarities)}
    score = Score(name, means["Pearson"], pearson_interval(labels, similarities), means)
    return score, PerQuery(system, name, [str(number) for number in range(len(labels))], rounded)


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]


def _predictions(task: AbsTask, folder: Path) -> Any:
    saved = json.loads((folder / f"{task.metadata.name}_predictions.json").read_text(encoding="utf-8"))
    return saved[task.hf_subsets[0]][task.eval_splits[0]]
