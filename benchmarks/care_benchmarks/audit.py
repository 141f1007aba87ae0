"""Candidates for relabelling: documents ranked high that were not judged, or that the labels call relevant (section E).

In the paper, an LLM judged the top 50 of gte-multilingual-base on two public sets, and found 8.6 and 19.0 relevant
documents per query that the labels miss (table 13). Here the candidates are collected; a person, or an LLM, judges
them, and the labels come back in.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from care_benchmarks.measures import Qrels, Run, ranked
from care_benchmarks.rows import read_jsonl
from care_qdrant.errors import InputError

_LABELS = {"S": 1, "A": 1, "B": 0, "C": 0, "D": 0}
DEPTH = 50
"""Number of ranks that the paper looked at."""


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Amount of unjudged documents at the top of the rankings."""

    queries: int
    depth: int
    unjudged_share: float
    """Fraction of the retrieved documents within the depth, from 0 to 1."""
    unjudged_per_query: float
    above_first_positive_per_query: float
    """Unjudged documents ranked above the first known positive: they cost score if they are relevant."""


@dataclass(frozen=True, slots=True)
class Relabelled:
    """Relevant documents per query before and after relabelling, the new labels taken as true (paper, table 13)."""

    original: float
    """Documents per query that were relevant before."""
    labelled: float
    """Documents per query that are relevant now."""
    false_positives: float
    """Documents per query that were relevant before and are not now."""
    false_negatives: float
    """Documents per query that are relevant now and were not before."""


def relabelled(qrels: Qrels, judged: Qrels) -> Relabelled:
    """Compare the judgements of an audit with the original labels."""
    pairs = [
        (qrels[query].get(document, 0) > 0, grade > 0)
        for query, grades in judged.items()
        for document, grade in grades.items()
    ]
    before, now = sum(old for old, _ in pairs), sum(new for _, new in pairs)
    wrong, missed = (pairs.count(kind) for kind in ((True, False), (False, True)))
    return Relabelled(*(count / len(qrels) for count in (before, now, wrong, missed)))


@dataclass(frozen=True, slots=True)
class AuditCandidate:
    """One document of one query that was not judged, or is relevant by its label."""

    query_id: str
    document_id: str
    rank: int
    above_first_positive: bool
    found_by: list[str]
    """Systems that rank it within the depth."""
    query: str
    document: str
    grade: int | None
    """Grade in the original labels, above 0; the audit checks it. None if the document was not judged."""
    label: None = None
    """Filled in by the annotator: the paper's scale is S, A, B, C, D (table 21); S and A count as relevant."""


def audit(qrels: Qrels, run: Run, depth: int = DEPTH) -> AuditSummary:
    """Count the unjudged documents of one run."""
    unjudged, seen, above = 0, 0, 0
    for query, grades in qrels.items():
        ranking = ranked(run.get(query, {}))[:depth]
        missing = [document for document in ranking if document not in grades]
        first = _first_positive(ranking, grades)
        unjudged, seen = unjudged + len(missing), seen + len(ranking)
        above += sum(document not in grades for document in ranking[:first])
    count = len(qrels)
    return AuditSummary(count, depth, unjudged / max(1, seen), unjudged / count, above / count)


def candidates(
    qrels: Qrels,
    runs: Mapping[str, Run],
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    depth: int = DEPTH,
) -> Iterator[AuditCandidate]:
    """Yield the documents to judge for each query, by the number of systems that rank them high, then by rank."""
    for query, grades in qrels.items():
        rankings = {system: ranked(run.get(query, {}))[:depth] for system, run in runs.items()}
        finders: dict[str, list[str]] = {}
        for system, ranking in rankings.items():
            for document in ranking:
                if grades.get(document, 1) > 0:
                    finders.setdefault(document, []).append(system)
        first = min((_first_positive(ranking, grades) for ranking in rankings.values()), default=0)
        places = {document: rankings[systems[0]].index(document) for document, systems in finders.items()}
        for document in sorted(finders, key=lambda name: (-len(finders[name]), places[name])):
            yield AuditCandidate(
                query_id=query,
                document_id=document,
                rank=places[document] + 1,
                above_first_positive=places[document] < first,
                found_by=finders[document],
                query=queries[query],
                document=documents[document],
                grade=grades.get(document),
            )


def write_candidates(rows: Iterator[AuditCandidate], path: Path) -> int:
    """Write candidates as JSON lines, and return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        return sum(bool(file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")) for row in rows)


def read_judgements(path: Path) -> Qrels:
    """Read the candidates whose ``label`` was filled in; S and A are relevant."""
    judged: Qrels = {}
    for row in read_jsonl(path):
        label = row.fields.get("label")
        if label is None:
            continue
        if label not in _LABELS:
            raise InputError(f"{row.where}: label is {label!r}; expected one of {', '.join(_LABELS)}, or null")
        grades = judged.setdefault(row.identity("query_id"), {})
        if grades.setdefault(row.identity("document_id"), _LABELS[label]) != _LABELS[label]:
            raise InputError(f"{row.where}: the pair was labelled differently in an earlier line")
    if not judged:
        raise InputError(f"{path}: no line has a label")
    return judged


def add_judgements(qrels: Qrels, judged: Qrels) -> Qrels:
    """Add the judgements of an audit to the qrels; a pair that was judged before keeps its grade."""
    if strangers := judged.keys() - qrels.keys():
        raise InputError(f"query {min(strangers)!r} was audited on another task; it is not in the qrels")
    return {query: {**judged.get(query, {}), **grades} for query, grades in qrels.items()}


def _first_positive(ranking: Sequence[str], grades: Mapping[str, int]) -> int:
    """Return the position, from 0, of the first relevant document, or the length if there is none."""
    return next((place for place, name in enumerate(ranking) if grades.get(name, 0) > 0), len(ranking))
