"""Judgements of people who use the search page, kept as labelled questions for `care learn --queries` and benchmarks.

Each collection has a folder of its own. ``judgements.jsonl`` is the log, a line for each press of a thumb. The two
other files follow from it and hold the questions with a relevant document: ``queries.jsonl`` is what `care learn
--queries` reads, and with ``qrels.jsonl`` and the corpus beside it the folder is a benchmark task.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

JUDGEMENTS, QUERIES, QRELS = "judgements.jsonl", "queries.jsonl", "qrels.jsonl"


def keep_label(folder: Path, query: str, document_id: str, *, is_relevant: bool | None) -> int:
    """Add a judgement to a folder, and return how many questions have a relevant document now.

    Args:
        folder: Folder of one collection; made where it is missing.
        query: The question.
        document_id: The document that was judged.
        is_relevant: None takes back what was said of this document.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / JUDGEMENTS).open("a+", encoding="utf-8") as log:
        fcntl.lockf(log, fcntl.LOCK_EX)  # workers share the folder
        log.write(_line({"text": query, "document_id": document_id, "relevant": is_relevant}))
        log.flush()
        log.seek(0)
        grades = _grades(map(json.loads, log))
        judged = {text: known for text, known in grades.items() if any(known.values())}
        ids = {text: hashlib.sha256(text.encode()).hexdigest()[:12] for text in judged}
        questions = [
            {"id": ids[text], "text": text, "relevant": [one for one, grade in known.items() if grade]}
            for text, known in judged.items()
        ]
        qrels = [
            {"query_id": ids[text], "document_id": one, "score": int(grade)}
            for text, known in judged.items()
            for one, grade in known.items()
        ]
        _replace(folder / QUERIES, questions)
        _replace(folder / QRELS, qrels)
    return len(questions)


def _grades(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, bool]]:
    """Return whether each judged document of each question is relevant, by the last judgement."""
    grades: dict[str, dict[str, bool]] = {}
    for row in rows:
        known = grades.setdefault(row["text"], {})
        known.pop(row["document_id"], None)
        if row["relevant"] is not None:
            known[row["document_id"]] = row["relevant"]
    return grades


def _replace(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    draft = file.with_suffix(".draft")  # a reader meets the old file or the new one
    draft.write_text("".join(map(_line, rows)), encoding="utf-8")
    draft.replace(file)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
