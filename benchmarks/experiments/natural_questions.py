"""Short, natural questions over the sample, by who asks: is the right document among the first three?

``examples/sample/natural.jsonl`` has questions of patients, families and doctors, and words typed into a search box.
They were written from the documents, before any of them was searched for.

    python -m benchmarks.experiments.natural_questions examples/sample --output build/natural.json
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from care_benchmarks.statistics import Interval, mean_interval
from qdrant_client import QdrantClient

from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.retriever import Mode, Retriever

MODES: tuple[Mode, ...] = ("hybrid", "dense", "sparse")
FIRST = 3
DEPTH = 10


@dataclass(frozen=True, slots=True)
class Question:
    """One question with the documents that answer it."""

    text: str
    asker: str
    documents: frozenset[str]


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one kind of search for the questions of one kind of asker."""

    mode: Mode
    asker: str
    questions: int
    in_first_three: float
    """Share of questions with a right document among the first three."""
    interval: Interval
    mean_reciprocal_rank: float


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Question(row["text"], row["asker"], frozenset(row["documents"])) for row in rows]


def ranks(retriever: Retriever, questions: list[Question]) -> list[int | None]:
    """Return the rank of the first right document of each question, from 1; None where it is below the tenth."""
    found = []
    for question, hits in zip(questions, retriever.search([each.text for each in questions], top_k=DEPTH), strict=True):
        places = (rank for rank, hit in enumerate(hits, 1) if hit.document_id in question.documents)
        found.append(next(places, None))
    return found


def rows_of(mode: Mode, questions: list[Question], found: list[int | None]) -> list[Row]:
    """Return a row for each kind of asker, and one for all."""
    by_asker: Mapping[str, list[int | None]] = defaultdict(list, all=found)
    for question, rank in zip(questions, found, strict=True):
        by_asker[question.asker].append(rank)
    rows = []
    for asker, its in by_asker.items():
        right = np.array([rank is not None and rank <= FIRST for rank in its], np.float64)
        reciprocal = [0.0 if rank is None else 1 / rank for rank in its]
        rows.append(Row(mode, asker, len(its), float(right.mean()), mean_interval(right), float(np.mean(reciprocal))))
    return rows


@click.command()
@click.argument("sample", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="Pair: a name or a folder.")
@output_option
def main(sample: Path, model: str, output: Path) -> None:
    """Search the corpus of SAMPLE with its natural questions.

    \b
    Example:
      python -m benchmarks.experiments.natural_questions examples/sample --output build/natural.json
    """
    questions, pair, client = read_questions(sample / "natural.jsonl"), CareModel.load(model), QdrantClient(":memory:")
    ingest(sample / "corpus.jsonl", pair, client, "sample", settings=IngestSettings(sparse=True))
    rows, missed = [], {}
    for mode in MODES:
        found = ranks(Retriever(client, "sample", pair, mode=mode), questions)
        missed[mode] = [q.text for q, rank in zip(questions, found, strict=True) if rank is None or rank > FIRST]
        for row in rows_of(mode, questions, found):
            rows.append(row)
            click.echo(
                f"{mode:7} {row.asker:11} {row.questions:4} questions  among the first {FIRST}: "
                f"{row.in_first_three:6.1%} ({row.interval.low:.1%} … {row.interval.high:.1%})  "
                f"MRR {row.mean_reciprocal_rank:.3f}",
                err=True,
            )
    save_measured(output, {"rows": [asdict(row) for row in rows], "missed": missed})


if __name__ == "__main__":
    main()
