"""The queries that a system answers worst, with what it gave and what was wanted."""

from collections.abc import Mapping

from care_benchmarks.audit import ranked
from care_benchmarks.measures import Run
from care_benchmarks.results import Answer, PerQuery, WorstQuery
from care_benchmarks.taskfiles import Qrels

QUERIES_PER_TASK = 10
ANSWERS = 5
LONGEST_TEXT = 240
"""Characters of a text that are shown."""


def worst_queries(
    entry: PerQuery, measure: str, run: Run, qrels: Qrels, queries: Mapping[str, str], documents: Mapping[str, str]
) -> list[WorstQuery]:
    """Give the worst queries of one system on one task, worst first; equal ones in their order."""
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
