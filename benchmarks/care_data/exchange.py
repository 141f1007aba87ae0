"""TREC's and umbrela's formats, in and out."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from care_data.config import Plan
from care_data.files import read_rows
from care_data.pool import CORPUS, POOL, QUERIES
from care_data.prompts import GRADES, RELEVANT
from care_data.source import shown
from care_qdrant import InputError


def umbrela_requests(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the pool as umbrela's request dictionaries, one for each question."""
    ranked: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(plan.folder / POOL, "care-data pool"):
        ranked.setdefault(row["query_id"], []).append(row)
    wanted = {row["document_id"] for rows in ranked.values() for row in rows}
    texts = {row["id"]: shown(row) for row in read_rows(plan.folder / CORPUS) if row["id"] in wanted}
    for question in read_rows(plan.folder / QUERIES):
        yield {
            "query": {"text": question["text"], "qid": question["id"]},
            "candidates": [
                {"docid": row["document_id"], "score": 1 / row["rank"], "doc": {"segment": texts[row["document_id"]]}}
                for row in ranked.get(question["id"], [])
            ],
        }


def qrels_lines(labels: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield TREC qrels of what is labelled relevant or irrelevant."""
    for row in labels:
        if row["label"] in ("relevant", "irrelevant"):
            yield f"{row['query_id']} 0 {row['document_id']} {int(row['label'] == 'relevant')}"


def read_judgements(path: Path, relevant_from: int) -> dict[tuple[str, str], int]:
    """Read TREC qrels, or umbrela's judgments as JSON Lines, as grades of our scale.

    Other scales have other steps, so a grade becomes A where it is relevant, and D where it is not.
    """
    rows = _umbrela(path) if path.suffix in (".json", ".jsonl", ".gz") else _trec(path)
    return {(query, document): RELEVANT if grade >= relevant_from else GRADES["D"] for query, document, grade in rows}


def _trec(path: Path) -> Iterator[tuple[str, str, int]]:
    if not path.is_file():
        raise InputError(f"{path}: is not there; expected TREC qrels (vote.imported)")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        if len(fields) != 4 or not fields[3].lstrip("-").isdigit():
            raise InputError(f"{path}:{number}: is {line[:60]!r}; expected: query 0 document grade")
        yield fields[0], fields[2], int(fields[3])


def _umbrela(path: Path) -> Iterator[tuple[str, str, int]]:
    for number, row in enumerate(read_rows(path), start=1):
        try:
            yield str(row["qid"]), str(row["docid"]), int(row["judgment"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}:{number}: no judgment ({error}); expected qid, docid, judgment") from error
