"""A measurement of `--fallback`: nDCG@10 where the queries that a learned table is least sure of go to the old model.

A table is trained on each collection and old model of `learn_data`, by the recipe of `learn_choices`. Its queries are
sorted by a measure of how sure it is, and the least sure share gets the old model's vectors. The score is a share of
the old model's own, dense, and with BM25 where both parts are measured in units of their deviation.

    python -m benchmarks.experiments.learn_dial CACHE --output benchmarks/results/learn-dial.json
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from care_benchmarks.machine import describe_machine
from care_trainer.learn import table as tables
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.start import built_in_tokenizer
from care_trainer.models.tokens import tokenize

from care_qdrant.search.share import DENSE_SHARE

from .learn_choices import VARIANTS, Scores, ndcg, run
from .learn_data import SOURCES, read_texts, read_vectors
from .learn_from_vectors import bm25_scores

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
"""Shares of the queries that are sent on to the old model."""
_TRIALS = 50
"""Trials of the random order that the measures are compared with."""


def measures(dense: Scores, lexical: Scores) -> dict[str, npt.NDArray[np.floating]]:
    """Return for each measure how sure the table is of each query; higher is surer."""
    best = np.sort(dense, axis=1)[:, ::-1]
    found = dense[np.arange(len(dense)), lexical.argmax(axis=1)]
    lead, few = best[:, 0] - best[:, 9], dense[:, np.random.default_rng(0).permutation(dense.shape[1])[:1_000]]
    return {
        "score of the best document": best[:, 0],
        "lead over the second": best[:, 0] - best[:, 1],
        "lead over the tenth": lead,
        "score and lead over the tenth": best[:, 0] / best[:, 0].std() + lead / lead.std(),
        "rank of BM25's best": -(dense > found[:, None]).sum(axis=1).astype(float),
        "deviations above the mean": (best[:, 0] - dense.mean(axis=1)) / dense.std(axis=1),
        "deviations above the mean of 1,000 documents": (best[:, 0] - few.mean(axis=1)) / few.std(axis=1),
    }


def curve(sure: npt.NDArray[np.floating], own: Sequence[float], old: Sequence[float]) -> list[float]:
    """Return the share of the old model's quality that is kept for each share of the queries sent on."""
    order, kept = np.argsort(sure, kind="stable"), []
    for share in SHARES:
        mixed, sent = np.asarray(own).copy(), order[: round(share * len(order))]
        mixed[sent] = np.asarray(old)[sent]
        kept.append(round(float(mixed.mean() / np.mean(old)), 4))
    return kept


def measure(cache: Path, source: str, teacher: str, variant: str, seed: int) -> dict[str, Any]:
    """Return the curves of one collection and old model."""
    texts, vectors = read_texts(cache, source), read_vectors(cache, source, teacher)
    table = run(texts, vectors.documents, vectors.log, VARIANTS[variant], seed)
    asked = tokenize(built_in_tokenizer(LearnSettings().max_tokens), texts.questions)
    dense, old = tables.encode(table, asked) @ vectors.documents.T, vectors.questions @ vectors.documents.T
    lexical = bm25_scores(texts.documents, texts.questions)

    def each(scores: Scores) -> list[float]:
        return [ndcg(scores[row : row + 1], [relevant]) for row, relevant in enumerate(texts.relevant)]

    def hybrid(scores: Scores) -> Scores:
        parts = [part / np.maximum(part.std(axis=1, keepdims=True), 1e-9) for part in (scores, lexical)]
        return DENSE_SHARE * parts[0] + (1 - DENSE_SHARE) * parts[1]

    sure = measures(dense, lexical)
    result: dict[str, Any] = {"source": source, "teacher": teacher, "seed": seed}
    for kind, own_scores, old_scores in (("dense", dense, old), ("hybrid", hybrid(dense), hybrid(old))):
        own, theirs = each(own_scores), each(old_scores)
        generator = np.random.default_rng(seed)
        drawn = [curve(generator.random(len(own)), own, theirs) for _ in range(_TRIALS)]
        result[kind] = {
            "old_model": round(float(np.mean(theirs)), 4),
            "random": np.mean(drawn, axis=0).round(4).tolist(),
            **{name: curve(values, own, theirs) for name, values in sure.items()},
        }
    return result


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean and range over collections and old models of each measure's curve, seeds averaged."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in runs:
        cells.setdefault((row["source"], row["teacher"]), []).append(row)
    found: dict[str, Any] = {"shares": SHARES, "cells": len(cells)}
    for kind in ("dense", "hybrid"):
        names = [name for name in runs[0][kind] if name != "old_model"]
        curves = {
            name: np.array([np.mean([row[kind][name] for row in rows], axis=0) for rows in cells.values()])
            for name in names
        }
        found[kind] = {
            name: {
                "mean": each.mean(axis=0).round(4).tolist(),
                "least": each.min(axis=0).round(4).tolist(),
                "most": each.max(axis=0).round(4).tolist(),
            }
            for name, each in curves.items()
        }
    return found


@click.command()
@click.argument("cache", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--sources", default=",".join(SOURCES), show_default=True, help="Collections, as in learn_data.")
@click.option("--teachers", default="e5,built-in", show_default=True, help="Old models.")
@click.option("--variant", default="base", show_default=True, help="Recipe, as in learn_choices.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds, one run for each.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def main(cache: Path, sources: str, teachers: str, variant: str, seeds: str, output: Path) -> None:
    """Draw the curves of the collections that learn_data left in CACHE; an interrupted run goes on.

    \b
    Example:
      python -m benchmarks.experiments.learn_dial CACHE --output benchmarks/results/learn-dial.json
    """
    runs = json.loads(output.read_text("utf-8"))["runs"] if output.is_file() else []
    done = {(row["source"], row["teacher"], row["seed"]) for row in runs}
    for seed in map(int, seeds.split(",")):
        for source in sources.split(","):
            for teacher in teachers.split(","):
                if (source, teacher, seed) not in done:
                    runs.append(measure(cache, source, teacher, variant, seed))
                    head = {"machine": asdict(describe_machine()), "variant": variant, "summary": summary(runs)}
                    output.write_text(json.dumps({**head, "runs": runs}) + "\n", encoding="utf-8")
    click.echo(json.dumps(summary(runs), indent=1))


if __name__ == "__main__":
    main()
