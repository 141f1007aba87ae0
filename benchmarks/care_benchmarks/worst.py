"""The worst answered queries of a system, with its answers and the relevant documents."""

from collections.abc import Mapping

from care_benchmarks.measures import Qrels, Run, ranked
from care_benchmarks.results import Answer, PerQuery, WorstQuery

QUERIES_PER_TASK = 10
ANSWERS = 5
LONGEST_TEXT = 240
"""Maximal number of characters that are shown of a text."""


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
