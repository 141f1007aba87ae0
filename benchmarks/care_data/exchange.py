"""Labels in other shapes: TREC's and umbrela's formats, in and out, and pairs that `care-train` reads (4.1, C.1)."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from care_data.config import Config
from care_data.files import LABELS, read_rows, write_rows, write_text
from care_data.pool import CORPUS, POOL, QUERIES
from care_data.prompts import GRADES, RELEVANT
from care_data.source import read_fields, shown
from care_qdrant.errors import InputError


def corpus_texts(config: Config, names: Iterable[str]) -> dict[str, str]:
    """Return the texts of documents as judges read them, by id."""
    ids = set(names)
    return {row["id"]: shown(row) for row in read_rows(config.folder / CORPUS) if row["id"] in ids}


def umbrela_requests(config: Config) -> Iterator[dict[str, Any]]:
    """Yield the pool as umbrela's request dictionaries, one for each question."""
    ranked: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(config.folder / POOL, config.command("pool")):
        ranked.setdefault(row["query_id"], []).append(row)
    texts = corpus_texts(config, (row["document_id"] for rows in ranked.values() for row in rows))
    for question in read_rows(config.folder / QUERIES):
        yield {
            "query": {"text": question["text"], "qid": question["id"]},
            "candidates": [
                {"docid": row["document_id"], "score": 1 / row["rank"], "doc": {"segment": texts[row["document_id"]]}}
                for row in ranked.get(question["id"], [])
            ],
        }


def write_qrels(config: Config, output: Path) -> int:
    """Write the pairs labelled relevant or irrelevant as TREC qrels, and return the number of lines."""
    rows = [
        row
        for row in read_rows(config.folder / LABELS, config.command("vote"))
        if row["label"] in ("relevant", "irrelevant")
    ]
    names = {row[key] for row in rows for key in ("query_id", "document_id")}
    if blank := min((name for name in names if name.split() != [name]), default=None):
        raise InputError(
            f"{output}: not written, since TREC qrels cannot hold the id {blank!r}; rename it, or use the "
            f"benchmark that {config.command('build')} writes"
        )
    pairs = (f"{row['query_id']} 0 {row['document_id']} {int(row['label'] == 'relevant')}\n" for row in rows)
    write_text(output, "".join(pairs))
    return len(rows)


def read_judgements(path: Path, relevant_from: int) -> dict[tuple[str, str], int]:
    """Read TREC qrels, or umbrela's judgments as JSON Lines, as grades on our scale.

    Scales differ, so a relevant grade becomes A and any other D.
    """
    rows: Iterable[tuple[Any, Any, Any]]
    if path.suffix in (".json", ".jsonl", ".gz"):
        rows = ((row.get("qid"), row.get("docid"), row.get("judgment")) for row in read_rows(path))
    else:
        rows = ((query, name, grade) for query, _, name, grade in read_fields(path, "query 0 document grade"))
    grades: dict[tuple[str, str], int] = {}
    for number, (query, document, grade) in enumerate(rows, start=1):
        if query is None or document is None:
            raise InputError(f"{path}:{number}: has no qid or no docid; expected both")
        try:
            own = RELEVANT if int(grade) >= relevant_from else GRADES["D"]
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path}:{number}: grade is {grade!r}; expected a number") from error
        if grades.setdefault((str(query), str(document)), own) != own:
            raise InputError(
                f"{path}:{number}: judges question {query!r} and document {document!r} twice, with different "
                "grades; keep one of the two"
            )
    return grades


def write_pairs(config: Config, output: Path, negatives: int = 5) -> dict[str, Any]:
    """Write a row for each question and relevant document, with at most ``negatives`` negatives.

    A document that was not judged, or is disputed, is neither a positive nor a negative: mined negatives that turn
    out to answer the question become positives, and those that judges disagree on are left out.
    """
    sides: dict[str, dict[str, list[str]]] = {}
    for row in (rows := list(read_rows(config.folder / LABELS, config.command("vote")))):
        sides.setdefault(row["query_id"], {}).setdefault(row["label"], []).append(row["document_id"])
    texts = corpus_texts(config, (row["document_id"] for row in rows))
    questions = {row["id"]: row for row in read_rows(config.folder / QUERIES)}

    def pairs() -> Iterator[dict[str, Any]]:
        for query, of in sides.items():
            usable = of.get("irrelevant", [])
            for document in of.get("relevant", []):
                draw = random.Random(f"0 {query} {document}").sample(usable, min(negatives, len(usable)))
                yield {
                    "query": questions[query]["text"],
                    "positive": texts[document],
                    "negatives": [texts[name] for name in draw],
                    "source": questions[query].get("source") or config.settings.name,
                    "license": questions[query].get("license") or config.settings.source.license,
                    "judge_families": config.families,
                }

    count, left_out = write_rows(output, pairs()), sum(row["label"] in ("disputed", "missing") for row in rows)
    return {"file": str(output), "pairs": count, "questions": len(sides), "left_out_documents": left_out}
