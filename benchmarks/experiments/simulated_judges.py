"""Simulated judges of known error rates over a real task: what votes recover, and what unanimity and cascades cost.

The task's labels are the truth. Half of them are hidden as a benchmark of one annotator would miss them, so that the
number of false negatives is known; five systems are pooled and ranked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from care_benchmarks.lexical import Bm25Matrix
from care_benchmarks.measures import CONDENSED, Qrels, Run, per_query
from care_benchmarks.taskfiles import find_tasks, read_corpus, read_questions
from care_data.vote import label_of
from scipy import stats

from benchmarks.perf.measured import output_option, save_measured
from care_qdrant import DEFAULT_ALPHA, CareModel, bm25_weight, embedded_text
from care_qdrant.encoders import bm25

PRICES = {"cheap": 1.0, "strong": 10.0}
"""Relative price of one vote."""
Rates = Mapping[str, tuple[float, float]]
"""Judge → share of relevant pairs that it misses, share of irrelevant pairs that it calls relevant."""
PANELS: Mapping[str, tuple[str, Rates]] = {
    "one cheap": ("majority", {"a1": (0.15, 0.05)}),
    "one strong": ("majority", {"s2": (0.05, 0.01)}),
    "three cheap, unanimous": ("unanimous", {"a1": (0.15, 0.05), "b1": (0.2, 0.03), "c1": (0.1, 0.08)}),
    "three cheap, majority": ("majority", {"a1": (0.15, 0.05), "b1": (0.2, 0.03), "c1": (0.1, 0.08)}),
    "three strong, unanimous": ("unanimous", {"s2": (0.05, 0.01), "t2": (0.07, 0.01), "u2": (0.06, 0.02)}),
    "two cheap, then a strong": ("unanimous", {"a1": (0.15, 0.05), "b1": (0.2, 0.03), "s2": (0.05, 0.01)}),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one panel recovers of the truth, over the repetitions."""

    panel: str
    recall: float
    """Share of the relevant pairs of the pool that are labelled relevant."""
    precision: float
    disputed: float
    """Share of the pairs that are disputed."""
    votes: float
    """Votes of a pair."""
    price: float
    """Price of a pair, in cheap votes."""
    false_negatives: float
    """Relevant documents of a question that the hidden labels lack, as the panel estimates them."""
    false_negatives_known: float
    kendall_tau: float
    """Of the ranking of the systems by nDCG@10 on the panel's labels with that on the truth; mean."""
    kendall_tau_condensed: float
    same_order: float
    """Share of the repetitions in which the whole ranking is the same."""


def rank_all(
    task: Path, model: CareModel, learned: CareModel | None, depth: int, most: int, others: int | None
) -> tuple[dict[str, Run], Qrels]:
    """Rank the corpus with each system, exactly."""
    files = find_tasks(task).retrieval
    if files is None:
        raise click.UsageError(f"{task} has no retrieval task")
    queries, qrels = read_questions(files)
    queries = dict(list(queries.items())[:most])
    qrels = {query: qrels[query] for query in queries}
    relevant = {name for grades in qrels.values() for name in grades}
    documents = list(read_corpus(files.corpus))
    rest = [each for each in documents if each.id not in relevant][:others]
    documents = [each for each in documents if each.id in relevant] + rest
    names = np.array([each.id for each in documents])
    texts = [embedded_text(each.title, each.text) for each in documents]
    length = bm25.average_length(texts)
    matrix = Bm25Matrix([bm25.document_vector(text, average_length=length) for text in texts])
    # What `care learn` wrote encodes queries alone, into the space of the document vectors that it learned from.
    systems = {"built-in": model} | ({"learned": learned} if learned else {})
    document, asked = model.encode_document(texts), list(queries.values())
    vectors = {name: each.encode_query(asked) for name, each in systems.items()}
    runs: dict[str, dict[str, dict[str, float]]] = {}
    draw = np.random.default_rng(0)
    for place, (query, text) in enumerate(queries.items()):
        terms = bm25.query_vector(text)
        lexical, _ = matrix.scores(terms)
        scores = {"BM25": lexical, "random": draw.random(len(names))}
        scores |= {name: document @ rows[place] for name, rows in vectors.items()}
        weight = bm25_weight(terms.values)
        scores["hybrid"] = DEFAULT_ALPHA * scores["built-in"] + (1 - DEFAULT_ALPHA) * weight * lexical
        for name, row in scores.items():
            best = np.argsort(-row, kind="stable")[:depth]
            runs.setdefault(name, {})[query] = {str(names[at]): float(row[at]) for at in best}
    return runs, qrels


def simulate(runs: Mapping[str, Run], qrels: Qrels, panel: str, repetitions: int, seed: int) -> Outcome:
    """Let a panel label the pool again and again, and compare with the truth."""
    rule, rates = PANELS[panel]
    tiers = {judge: int(judge[1]) if rule == "unanimous" and len({j[1] for j in rates}) > 1 else 1 for judge in rates}
    pool = [(query, name) for query in qrels for name in sorted({name for run in runs.values() for name in run[query]})]
    truth = np.array([qrels[query].get(name, 0) > 0 for query, name in pool])
    right = _means(runs, qrels, "nDCG@10")
    rows = []
    for number in range(repetitions):
        draw = np.random.default_rng([seed, number])
        hidden = draw.random(len(pool)) < 0.5
        said = {
            judge: np.where(truth, draw.random(len(pool)) >= miss, draw.random(len(pool)) < false)
            for judge, (miss, false) in rates.items()
        }
        labels, votes, price = [], 0, 0.0
        for at in range(len(pool)):
            first = {judge: 4 * int(said[judge][at]) for judge in rates if tiers[judge] == 1}
            given: dict[str, int | None] = dict(first)
            if len(set(first.values())) > 1:
                given |= {judge: 4 * int(said[judge][at]) for judge in rates if tiers[judge] == 2}
            labels.append(label_of(given, tiers, rule, {}, {}))  # type: ignore[arg-type]
            votes += len(given)
            price += sum(PRICES["strong" if judge[1] == "2" else "cheap"] for judge in given)
        relevant = np.array([label == "relevant" for label in labels])
        found: Qrels = {}
        for (query, name), label in zip(pool, labels, strict=True):
            if label in ("relevant", "irrelevant"):
                found.setdefault(query, {})[name] = int(label == "relevant")
        found = {query: grades for query, grades in found.items() if any(grades.values())}
        kept = list(right)
        ours = {name: per_query(found, run) for name, run in runs.items()}
        taus = [
            stats.kendalltau(
                [right[name] for name in kept], [np.mean(list(ours[name][measure].values())) for name in kept]
            ).statistic
            for measure in ("nDCG@10", CONDENSED)
        ]
        rows.append(
            [
                (relevant & truth).sum() / truth.sum(),
                (relevant & truth).sum() / max(1, relevant.sum()),
                np.mean([label == "disputed" for label in labels]),
                votes / len(pool),
                price / len(pool),
                (relevant & hidden).sum() / len(qrels),
                (truth & hidden).sum() / len(qrels),
                taus[0],
                taus[1],
                np.isclose(taus[0], 1),
            ]
        )
    return Outcome(panel, *np.mean(np.asarray(rows, dtype=np.float64), axis=0).tolist())


def _means(runs: Mapping[str, Run], qrels: Qrels, measure: str) -> dict[str, float]:
    return {name: float(np.mean(list(per_query(qrels, run)[measure].values()))) for name, run in runs.items()}


@click.command()
@click.argument("task", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--learned", help="What `care learn` made of the built-in pair's vectors, as a fifth system.")
@click.option("--depth", type=click.IntRange(10), default=20, show_default=True, help="Documents of each system.")
@click.option("--queries", type=click.IntRange(1), default=400, show_default=True, help="Queries, the first ones.")
@click.option("--documents", type=click.IntRange(0), help="Other documents than judged ones.  [default: all]")
@click.option(
    "--repetitions", type=click.IntRange(1), default=20, show_default=True, help="Draws of the judges' errors."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the errors.")
@output_option
def main(
    task: Path,
    learned: str | None,
    depth: int,
    queries: int,
    documents: int | None,
    repetitions: int,
    seed: int,
    output: Path,
) -> None:
    """Simulate panels of judges over the labels of TASK.

    \b
    Example:
      python -m benchmarks.experiments.simulated_judges DEV --output benchmarks/results/simulated-judges.json
    """
    other = CareModel.load(learned) if learned else None
    runs, qrels = rank_all(task, CareModel.load(), other, depth, queries, documents)
    outcomes: Sequence[Outcome] = [simulate(runs, qrels, panel, repetitions, seed) for panel in PANELS]
    systems = {name: round(score, 4) for name, score in _means(runs, qrels, "nDCG@10").items()}
    panels = {name: {"rule": rule, "misses_and_false_alarms": rates} for name, (rule, rates) in PANELS.items()}
    settings = {
        "depth": depth,
        "repetitions": repetitions,
        "seed": seed,
        "queries": len(qrels),
        "other_documents": documents,
        "panels": panels,
    }
    save_measured(output, {**settings, "systems_ndcg_at_10": systems, "outcomes": [asdict(each) for each in outcomes]})


if __name__ == "__main__":
    main()
