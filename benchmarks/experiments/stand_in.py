"""Measures documents that a learned query encoder encodes, where the model of the other documents is gone.

A share of a collection's documents counts as new: a table is learned from the others (`learn_choices`) and encodes the
new ones as `care ingest --stand-in` does. The collection's questions are scored with the old model's vectors of all
documents, with the table's vectors of the new ones, moved among the stored ones (`care_trainer.learn.stand_in`) and as
they are, and with the new ones found by BM25 alone; questions whose answer is new, and those whose answer is old, also
apart. Above all it is counted how many of the first ten are new.

    python -m benchmarks.experiments.stand_in CACHE --sources cpsycoun,haimol_tcm --limit 1000 --output stand-in.json
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from care_benchmarks.machine import describe_machine
from care_trainer.learn import quality, split
from care_trainer.learn import table as tables
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.stand_in import shift
from care_trainer.learn.start import built_in_tokenizer
from care_trainer.models.tokens import tokenize

from care_qdrant.types import Vectors

from .learn_choices import HELD, VARIANTS, Scores, ndcg, run
from .learn_data import SOURCES, TEACHERS, read_texts, read_vectors, smaller
from .learn_from_vectors import bm25_scores


def measure(cache: Path, source: str, teacher: str, share: float, seed: int, limit: int) -> dict[str, Any]:
    """Learn from the documents that are not new, encode those that are, and score each way."""
    began = time.process_time()
    texts, vectors = smaller(read_texts(cache, source), read_vectors(cache, source, teacher), limit)
    documents, count = vectors.documents, len(texts.documents)
    new = np.zeros(count, dtype=bool)
    new[np.random.default_rng([seed, 7]).permutation(count)[: round(share * count)]] = True
    old_rows = np.flatnonzero(~new)
    fewer = replace(texts, documents=[texts.documents[row] for row in old_rows])
    table = run(fewer, documents[old_rows], vectors.log, VARIANTS["base"], seed)
    tokenizer = built_in_tokenizer(LearnSettings().max_tokens)

    def encode(asked: Sequence[str]) -> Vectors:
        return tables.encode(table, tokenize(tokenizer, asked))

    generator = np.random.default_rng([seed, 3])
    sentences = [
        split.question_of(fewer.documents[row], "", generator) for row in generator.permutation(len(old_rows))[:HELD]
    ]
    asked = encode(sentences)
    alpha = quality.fusion_alpha(sentences, asked, fewer.documents, documents[old_rows]) or 1.0
    questions, lexical = encode(texts.questions), bm25_scores(texts.documents, texts.questions)
    stored, encoded = questions @ documents.T, encode(texts.documents)
    moved = encoded + shift(encoded[old_rows], documents[old_rows], asked)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    stands_in, unmoved = (np.where(new, questions @ each.T, stored) for each in (moved, encoded))
    dense = {
        "old_vectors": stored,
        "stand_in": stands_in,
        "unmoved": unmoved,
        "no_vector": np.where(new, 0.0, stored),
    }
    ways = {"old_model": vectors.questions @ documents.T, "bm25": lexical, **dense}
    ways |= {f"{name}_with_bm25": alpha * scores + (1 - alpha) * lexical for name, scores in dense.items()}
    return {
        "source": source,
        "teacher": teacher,
        "share": share,
        "seed": seed,
        "documents": count,
        "alpha": alpha,
        "spread_of_scores": [round(float(stands_in[:, rows].std(axis=1).mean()), 4) for rows in (~new, new)],
        "cpu_seconds": round(time.process_time() - began, 1),
        "ways": {name: _figures(scores, texts.relevant, new) for name, scores in ways.items()},
    }


def _figures(scores: Scores, relevant: Sequence[Sequence[int]], new: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return nDCG@10 of all questions, of those with a new answer and of the others, and the new ones' share of ten."""
    found = np.array([ndcg(row[None], [rows]) for row, rows in zip(scores, relevant, strict=True)])
    asks_new = np.array([bool(new[list(rows)].any()) for rows in relevant])
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    parts = {"all": found, "new": found[asks_new], "old": found[~asks_new], "new_in_ten": new[best]}
    return {name: round(float(values.mean()), 4) for name, values in parts.items() if values.size}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and range over collections and old models of each share, way and part, seeds averaged."""
    result: dict[str, Any] = {}
    for share in sorted({row["share"] for row in rows}):
        of_share = [row for row in rows if row["share"] == share]
        cells = sorted({(row["source"], row["teacher"]) for row in of_share})
        result[str(share)] = {"cells": len(cells)}
        for way in of_share[0]["ways"]:
            for part in ("all", "new", "old", "new_in_ten"):
                means = [
                    float(
                        np.mean([row["ways"][way][part] for row in of_share if (row["source"], row["teacher"]) == cell])
                    )
                    for cell in cells
                ]
                line = [round(value, 4) for value in (float(np.mean(means)), min(means), max(means))]
                result[str(share)].setdefault(way, {})[part] = line
    return result


@click.command()
@click.argument("cache", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--sources", default=",".join(SOURCES), show_default=True, help="Collections, as in learn_data.")
@click.option("--teachers", default="built-in", show_default=True, help=f"Old models: {', '.join(TEACHERS)}.")
@click.option("--shares", default="0.05,0.2,0.5", show_default=True, help="Fractions of new documents.")
@click.option("--seeds", default="0", show_default=True, help="Seeds, one run for each.")
@click.option("--limit", type=int, default=1_000, show_default=True, help="Most documents of a collection.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def main(cache: Path, sources: str, teachers: str, shares: str, seeds: str, limit: int, output: Path) -> None:
    """Score documents of a learned encoder on the collections that learn_data left in CACHE; a killed run goes on.

    \b
    Example:
      python -m benchmarks.experiments.stand_in CACHE --seeds 0,1,2 --output stand-in.json
    """
    rows = json.loads(output.read_text("utf-8"))["runs"] if output.is_file() else []
    done = {(row["seed"], row["share"], row["source"], row["teacher"]) for row in rows}
    for seed in map(int, seeds.split(",")):
        for share in map(float, shares.split(",")):
            for source in sources.split(","):
                for teacher in teachers.split(","):
                    if (seed, share, source, teacher) in done:
                        continue
                    rows.append(measure(cache, source, teacher, share, seed, limit))
                    result = {"machine": asdict(describe_machine()), "summary": summary(rows), "runs": rows}
                    output.write_text(json.dumps(result) + "\n", encoding="utf-8")
    click.echo(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
