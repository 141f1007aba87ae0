"""Labels to training data: what `care-train` reads, without false negatives among the negatives (4.1, C.1).

A document that nobody judged, or that is disputed, is neither a positive nor a negative: mined negatives that turn out
to answer the question become positives, and those that judges do not agree on go.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from care_data.config import Plan
from care_data.files import read_rows, write_rows
from care_data.pool import CORPUS, QUERIES
from care_data.source import shown
from care_data.vote import LABELS


def write_pairs(plan: Plan, output: Path, negatives: int, seed: int = 0) -> dict[str, Any]:
    """Write a row for each question and relevant document, and return how many.

    Args:
        plan: The configuration whose labels are used.
        output: JSON Lines for a ``data`` table of `care-train`.
        negatives: Judged negatives of a row, at most; drawn for each row.
        seed: Decides the draw.
    """
    labels = list(read_rows(plan.folder / LABELS, "care-data vote"))
    by_question: dict[str, dict[str, list[str]]] = {}
    for row in labels:
        sides = by_question.setdefault(row["query_id"], {})
        sides.setdefault(row["label"], []).append(row["document_id"])
    wanted = {row["document_id"] for row in labels}
    texts = {row["id"]: shown(row) for row in read_rows(plan.folder / CORPUS) if row["id"] in wanted}
    questions = {row["id"]: row for row in read_rows(plan.folder / QUERIES)}
    families = sorted({judge.family for judge in plan.settings.judge} | {i.family for i in plan.settings.vote.imported})

    def rows() -> Iterator[dict[str, Any]]:
        for query, sides in by_question.items():
            usable = sides.get("irrelevant", [])
            for document in sides.get("relevant", []):
                draw = random.Random(f"{seed} {query} {document}").sample(usable, min(negatives, len(usable)))
                yield {
                    "query": questions[query]["text"],
                    "positive": texts[document],
                    "negatives": [texts[name] for name in draw],
                    "source": questions[query].get("source") or plan.settings.name,
                    "license": questions[query].get("license") or plan.settings.source.license,
                    "judge_families": families,
                }

    count = write_rows(output, rows())
    left_out = sum(row["label"] in ("disputed", "missing") for row in labels)
    return {"file": str(output), "pairs": count, "questions": len(by_question), "left_out_documents": left_out}
