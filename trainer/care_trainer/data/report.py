"""Figures of the data of a run: rows by source, lengths, and leaks of the evaluation set."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from care_qdrant.errors import InputError
from care_trainer.config import Data, Run, Stage, stage_name
from care_trainer.data.diversity import diverse_pairs
from care_trainer.data.read import Pair, Text, iter_texts, plain_text, retrieval_rows

SINGLE_TEXT_STAGES = ("retromae", "align")


def describe(run: Run) -> dict[str, Any]:
    """Return the figures of the data that each stage reads, by stage."""
    if run.document.collection is not None:
        raise InputError("document.collection: its texts are read and checked when the run begins, not before")
    root = Path(run.data_root)
    return {
        stage_name(stage): {"data": stage.data, **_figures(_rows(stage, run.data_set(stage.data), root), run, stage)}
        for stage in _reading(run)
    }


def leaks(run: Run) -> list[str]:
    """Return the training texts that are also queries or judged documents of the evaluation set, cut to 60 characters.

    A document that answers none of its queries reveals nothing about them.
    """
    if run.evaluation is None:
        raise InputError("the configuration has no [evaluation], so there is nothing to leak")
    root = Path(run.data_root)
    held_out = set(_judged_texts(root / run.evaluation.retrieval))
    leaked_texts: dict[str, None] = {}
    for stage in _reading(run):
        for row in _rows(stage, run.data_set(stage.data), root):
            leaked = [text for text in _strings(row) if plain_text(text) in held_out]
            leaked_texts.update({f"{stage.data}: {text[:60]}": None for text in leaked})
    return list(leaked_texts)


def _reading(run: Run) -> list[Stage]:
    """Return the stages that read data; ``prune`` does not."""
    return [stage for stage in run.stage if stage.data]


def _rows(stage: Stage, data: Data, root: Path) -> Iterator[Pair | Text]:
    yield from iter_texts(data, root) if stage.kind in SINGLE_TEXT_STAGES else diverse_pairs(data, root)


def _figures(rows: Iterable[Pair | Text], run: Run, stage: Stage) -> dict[str, Any]:
    weights = run.data_set(stage.data).weights
    sources: Counter[str] = Counter()
    lengths = array("l")
    for row in rows:
        sources[row.source] += 1
        lengths.extend(map(len, _strings(row)))
    return {
        "rows": sources.total(),
        "rows_an_epoch": round(sum(count * weights.get(source, 1.0) for source, count in sources.items())),
        "sources": {
            source: {"rows": count, "weight": weights.get(source, 1.0)} for source, count in sources.most_common()
        },
        # Fewer texts than twenty have no 95th percentile.
        "characters": {
            f"p{share}": int(np.percentile(lengths, share))
            for share in (50, 95, 100)
            if share != 95 or len(lengths) >= 20
        },
    }


def _strings(row: Pair | Text) -> Sequence[str]:
    return (row.query, row.positive) if isinstance(row, Pair) else (row.text,)


def _judged_texts(folder: Path) -> Iterator[str]:
    judged = {str(row["document_id"]) for row, _ in retrieval_rows(folder, "qrels")}
    for row, _ in retrieval_rows(folder, "queries"):
        yield plain_text(row["text"])
    for row, _ in retrieval_rows(folder, "corpus"):
        if str(row["id"]) in judged:
            yield plain_text(row["text"])
