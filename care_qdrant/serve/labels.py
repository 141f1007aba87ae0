"""Judgements of people who use the search page, kept as labelled questions for `care learn --queries` and benchmarks.

Each collection has a folder of its own. ``judgements.jsonl`` is the log, a line for each judgement. The two
other files follow from it and hold the questions with a relevant document: ``queries.jsonl`` is what `care learn
--queries` reads, and together with ``qrels.jsonl`` and the corpus the folder is a benchmark task.
"""

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from care_qdrant.search.judged import QUERIES

logger = logging.getLogger(__name__)

JUDGEMENTS, QRELS = "judgements.jsonl", "qrels.jsonl"


def keep_label(folder: Path, query: str, document_id: str, *, is_relevant: bool | None) -> int:
    """Add a judgement to a folder, and return how many questions have a relevant document now.

    Args:
        folder: Folder of one collection; made where it is missing.
        query: The question.
        document_id: The document that was judged.
        is_relevant: None removes the judgement of this document.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / JUDGEMENTS).open("ab+") as log:
        # Workers share the folder, and so do the threads of each, which `lockf` does not keep apart.
        fcntl.flock(log, fcntl.LOCK_EX)
        log.seek(0)
        before = log.read()
        line = _line({"text": query, "document_id": document_id, "relevant": is_relevant}).encode()
        # A writer that was killed leaves a last line without a line feed: start a new line after it.
        log.write(line if not before or before.endswith(b"\n") else b"\n" + line)
        log.flush()
        grades = _grades(_rows(folder / JUDGEMENTS, [*before.split(b"\n"), line]))
        judged = {text: known for text, known in grades.items() if any(known.values())}
        ids = {text: hashlib.sha256(text.encode()).hexdigest()[:12] for text in judged}
        questions = [
            {"id": ids[text], "text": text, "relevant": [document for document, grade in known.items() if grade]}
            for text, known in judged.items()
        ]
        qrels = [
            {"query_id": ids[text], "document_id": document, "score": int(grade)}
            for text, known in judged.items()
            for document, grade in known.items()
        ]
        _replace(folder / QUERIES, questions)
        _replace(folder / QRELS, qrels)
    return len(questions)


def kept_labels(folder: Path, query: str) -> Mapping[str, bool]:
    """Return whether each document that was judged for a question is relevant to it."""
    log = folder / JUDGEMENTS
    try:
        status = log.stat()
        return _grades_of(log, (status.st_mtime_ns, status.st_size)).get(query, {})
    except FileNotFoundError:
        return {}
    except OSError as error:  # a search has its hits all the same
        logger.warning("judgements are not shown: %s", error)
        return {}


@lru_cache(8)
def _grades_of(log: Path, version: tuple[int, int]) -> Mapping[str, Mapping[str, bool]]:  # noqa: ARG001  # a key
    """Return the judgements of a log; the version says when they have to be read again."""
    return _grades(_rows(log, log.read_bytes().split(b"\n")))


def _rows(file: Path, lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    """Yield the judgements of a log; a line that is not a judgement is logged and left out."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if {type(row["text"]), type(row["document_id"])} != {str} or row["relevant"] not in (True, False, None):
                raise ValueError("expected text, document_id and relevant")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            logger.warning("%s:%d: left out, it is not a judgement (%s)", file, number, error)
            continue
        yield row


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
