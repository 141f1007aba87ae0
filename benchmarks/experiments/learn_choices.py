"""Score a choice of `care learn` on several collections and old models at once, by its mean and range.

Each variant is a table of the built-in pair's tokens, trained on a collection's documents and, where it says so, on a
query log without answers; the collection's own questions with known answers (`learn_data`) score it: nDCG@10, as a
share of what the old model's own query vectors reach. An interrupted command goes on where it was.

    python -m benchmarks.experiments.learn_choices CACHE --variants base,kl --seeds 0,1,2 --output choices.json
"""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import numpy.typing as npt
import torch
from care_benchmarks.machine import describe_machine
from care_trainer.learn import quality, split
from care_trainer.learn import table as tables
from care_trainer.learn.near import near_copies
from care_trainer.learn.reading import principal_directions
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.start import built_in_tokenizer, mapped_start, token_vectors
from care_trainer.losses.objectives import cross_entropy, squared_distance
from care_trainer.models.tokens import TokenLists, tokenize
from torch import Tensor, nn

from care_qdrant.measures import ndcg_at_10
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.share import DENSE_SHARE
from care_qdrant.types import Vectors

from .learn_data import SOURCES, TEACHERS, Texts, read_texts, read_vectors, smaller
from .learn_from_vectors import bm25_scores

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Shares of the dense score, both scores in units of their deviation; 1 over the deviations gives the alpha."""
HELD = 100
"""Documents whose sentences give the recommended alpha its scale and, held out of another table, a quality."""
_KL_TEMPERATURE = 0.05

Scores = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Variant:
    """One way to train a table."""

    start: Literal["built-in", "random"] = "built-in"
    log: Literal["none", "mixed", "after"] = "none"
    """Questions with the old model's vectors, among the documents or after them, at a lower rate."""
    questions: int = 500
    neighbours: int = 0
    """Nearest stored vectors of each text whose products with the stored one the query has to give again (KL)."""
    epochs: int = 28
    learning_rate: float = 3e-3
    width: int = 512
    """Principal directions of the stored vectors that the table has."""
    temperature: float = LearnSettings().temperature
    spread: bool = True
    """Whether the temperature is times the mean squared distance of the stored vectors from their mean."""
    dropout: float = 0.3
    """Share of a text's tokens that are left out at each step."""
    after_rate: float = 1e-3
    after_epochs: int = 8


VARIANTS = {
    "base": Variant(),
    "random": Variant(start="random"),
    "kl": Variant(neighbours=50),
    "width-256": Variant(width=256),
    "width-1024": Variant(width=1024),
    "temperature-02": Variant(temperature=0.02, spread=False),
    "dropout-60": Variant(dropout=0.6),
    "epochs-14": Variant(epochs=14),
    "epochs-56": Variant(epochs=56),
    "log-mixed": Variant(log="mixed"),
    "log-after": Variant(log="after"),
    "log-after-slow": Variant(log="after", after_rate=3e-4),
}


def run(texts: Texts, documents: Vectors, log: Vectors, variant: Variant, seed: int) -> Vectors:
    """Train a table on the documents and return it, (tokens, width)."""
    settings = LearnSettings(
        seed=seed,
        epochs=variant.epochs,
        learning_rate=variant.learning_rate,
        token_dropout=variant.dropout,
        temperature=variant.temperature,
    )
    tokenizer = built_in_tokenizer(settings.max_tokens)
    read, asked = tokenize(tokenizer, texts.documents), tokenize(tokenizer, texts.log[: variant.questions])
    size = tokenizer.get_vocab_size()
    if variant.spread:
        settings = replace(settings, temperature=settings.temperature * tables.spread(documents))
    targets, questions = documents, log[: variant.questions]
    if variant.start == "random":
        table = tables.start_table(read, size, targets.shape[1], seed)
    else:
        table = mapped_start(_known(), read, targets)
    if variant.log == "mixed":
        return _fit(table, read.joined(asked), np.concatenate([targets, questions]), settings, variant.neighbours)
    table = _fit(table, read, targets, settings, variant.neighbours)
    if variant.log == "after":
        later = replace(settings, epochs=variant.after_epochs, learning_rate=variant.after_rate, batch=128)
        table = _fit(table, asked, questions, later, 0, others=targets)
    return table


@cache
def _known() -> Vectors:
    return token_vectors(built_in_tokenizer(LearnSettings().max_tokens), CareModel.load().query_encoder)


def _fit(
    table: Vectors,
    tokens: TokenLists,
    targets: Vectors,
    settings: LearnSettings,
    neighbours: int,
    others: Vectors | None = None,
) -> Vectors:
    """Train as `care_trainer.learn.table.fit_table` does, to the last step, with a choice of losses."""
    pool = targets if others is None else np.concatenate([targets, others])
    near = np.argpartition(-(targets @ targets.T), neighbours, axis=1)[:, :neighbours] if neighbours else None
    steps = min(settings.max_steps, settings.epochs * -(-len(tokens) // settings.batch))
    weights = nn.Parameter(torch.from_numpy(table.copy()))
    optimizer = torch.optim.SparseAdam([weights], lr=settings.learning_rate)
    generator, order = np.random.default_rng([settings.seed, 1]), np.empty(0, dtype=np.int64)
    for step in range(steps):
        if len(order) < min(settings.batch, len(tokens)):
            order = generator.permutation(len(tokens))
        rows, order = order[: settings.batch], order[settings.batch :]
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 - step / steps)
        batch = tokens.take(rows).drop(settings.token_dropout, generator)
        used, places = np.unique(batch.flat, return_inverse=True)
        part = weights.detach()[used].requires_grad_()
        sums = nn.functional.embedding_bag(
            torch.from_numpy(places), part, torch.from_numpy(batch.starts[:-1]), mode="sum"
        )
        queries, wanted = nn.functional.normalize(sums, dim=1), torch.from_numpy(targets[rows])
        drawn = torch.from_numpy(pool[generator.integers(len(pool), size=settings.negatives)])
        loss = _alignment_loss(queries, wanted, drawn, settings.temperature)
        if near is not None:
            listed = torch.from_numpy(targets[near[rows]])
            ours, theirs = (torch.einsum("bd,bkd->bk", one, listed) / _KL_TEMPERATURE for one in (queries, wanted))
            logs = nn.functional.log_softmax(ours, dim=1)
            loss = loss + nn.functional.kl_div(logs, theirs.softmax(dim=1), reduction="batchmean")
        loss.backward()  # type: ignore[no-untyped-call]
        assert part.grad is not None
        weights.grad = torch.sparse_coo_tensor(
            torch.from_numpy(used)[None], part.grad, weights.shape, check_invariants=True, is_coalesced=True
        )
        optimizer.step()
    trained: Vectors = weights.detach().numpy()
    return trained


def _alignment_loss(queries: Tensor, documents: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Return `care_trainer.learn.table.alignment_loss`, for gradients by torch."""
    candidates = torch.cat([documents, others])
    same = documents @ candidates.T > tables.SAME * documents.norm(dim=1)[:, None] * candidates.norm(dim=1)
    own = torch.arange(len(queries))
    return cross_entropy(queries @ candidates.T / temperature, same, own) + squared_distance(queries, documents)


def ndcg(scores: Scores, relevant: Sequence[Sequence[int]]) -> float:
    """Return the mean nDCG@10 of questions with some relevant documents each."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    return float(np.mean(ndcg_at_10(best.tolist(), relevant)))


def measure(cache_: Path, source: str, teacher: str, name: str, seed: int, limit: int) -> dict[str, Any]:
    """Train a variant on a collection of at most so many documents and score it, beside the old model and BM25."""
    began, whole = time.process_time(), read_texts(cache_, source)
    texts, vectors = smaller(whole, read_vectors(cache_, source, teacher), limit)
    documents, log, width = vectors.documents, vectors.log, VARIANTS[name].width
    if documents.shape[1] > width:
        basis = principal_directions(documents, width)
        documents, log = documents @ basis.T, log @ basis.T
    lexical = bm25_scores(texts.documents, texts.questions)
    tokenizer = built_in_tokenizer(LearnSettings().max_tokens)

    def encode(table: Vectors, asked: Sequence[str]) -> Vectors:
        return tables.encode(table, tokenize(tokenizer, asked))

    generator = np.random.default_rng([seed, 3])
    rows = generator.permutation(len(texts.documents))[:HELD]
    sentences = [split.question_of(texts.documents[row], "", generator) for row in rows]
    table = run(texts, documents, log, VARIANTS[name], seed)
    copies = near_copies(texts.documents, rows)
    train = np.setdiff1d(np.flatnonzero(~copies), rows)
    fewer = replace(texts, documents=[texts.documents[row] for row in train])
    asked = [text for text, row in zip(sentences, rows, strict=True) if not copies[row]]
    without = encode(run(fewer, documents[train], log, VARIANTS[name], seed), asked)
    candidates = documents[np.concatenate([rows[~copies[rows]], train])]
    ranks = split.ranks(without, candidates, np.arange(len(asked)))
    dense = encode(table, texts.questions) @ documents.T
    old = vectors.questions @ vectors.documents.T
    recommended = quality.fusion_alpha(sentences, encode(table, sentences), texts.documents, documents) or 1.0
    odds = recommended / (1 - recommended) * (1 - DENSE_SHARE) / DENSE_SHARE
    alphas = {share: round(share * odds / (share * odds + 1 - share), 3) for share in SHARES}

    def hybrid(weight: float) -> float:
        return round(ndcg(weight * dense + (1 - weight) * lexical, texts.relevant), 4)

    return {
        "source": source,
        "teacher": teacher,
        "variant": name,
        "seed": seed,
        "limit": limit,
        "documents": len(texts.documents),
        "dim": vectors.documents.shape[1],
        "in_directions": round(float((documents**2).sum(axis=1).mean()), 4),
        "cpu_seconds": round(time.process_time() - began, 1),
        "old_model": round(ndcg(old, texts.relevant), 4),
        "bm25": round(ndcg(lexical, texts.relevant), 4),
        "dense": round(ndcg(dense, texts.relevant), 4),
        "held_out": asdict(split.measure(ranks, len(candidates))),
        "near_copies": int(copies.sum()),
        "alpha": {str(share): alpha for share, alpha in alphas.items()},
        "by_share": {str(share): hybrid(alpha) for share, alpha in alphas.items()},
        "by_alpha": {str(alpha): hybrid(alpha) for alpha in ALPHAS},
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean and range over collections and old models of each variant, seeds averaged.

    A variant is compared with the base on the cells that both have: `gain` is that mean difference of nDCG@10.
    """
    cells: dict[str, dict[tuple[str, str, int], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row["variant"]][row["source"], row["teacher"], row["limit"]].append(row)

    def mean(found: Sequence[dict[str, Any]], *keys: str) -> float:
        return float(np.mean([one[keys[0]] if len(keys) == 1 else one[keys[0]][keys[1]] for one in found]))

    result = {}
    for name, cell in cells.items():
        kept = [mean(found, "dense") / mean(found, "old_model") for found in cell.values()]
        both = [key for key in cell if key in cells["base"]]
        result[name] = {
            "cells": len(cell),
            "seeds": sorted({row["seed"] for found in cell.values() for row in found}),
            "dense": _range([mean(found, "dense") for found in cell.values()]),
            "kept": _range(kept),
            "gain": _range([mean(cell[key], "dense") - mean(cells["base"][key], "dense") for key in both]),
            **{
                kind: {key: _range([mean(found, kind, key) for found in cell.values()]) for key in rows[0][kind]}
                for kind in ("by_alpha", "by_share", "alpha")
            },
            "bm25": _range([mean(found, "bm25") for found in cell.values()]),
            "old_model": _range([mean(found, "old_model") for found in cell.values()]),
        }
    return result


def prediction(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return how far a held-out figure predicts nDCG@10 on real questions of a collection that the line has not seen.

    For each figure: the mean absolute error of a line fitted on the base rows of all other collections, and that of
    their mean alone, with the number of collections; empty with fewer than three.
    """
    base = [row for row in rows if row["variant"] == "base" and "held_out" in row]
    sources = np.array([row["source"] for row in base])
    if len(set(sources)) < 3:
        return {}
    wanted = np.array([row["dense"] for row in base])
    found = {}
    for figure in ("recall_at_10", "mrr"):
        known = np.stack([np.ones(len(base)), [row["held_out"][figure] for row in base]], axis=1)
        errors = np.zeros((2, len(base)))
        for source in set(sources):
            here = sources == source
            line, *_ = np.linalg.lstsq(known[~here], wanted[~here])
            errors[:, here] = np.abs([known[here] @ line - wanted[here], wanted[~here].mean() - wanted[here]])
        found[figure] = [round(float(error), 4) for error in errors.mean(axis=1)] + [len(set(sources))]
    return found


def _range(values: Sequence[float]) -> list[float] | None:
    return [round(float(one), 4) for one in (np.mean(values), min(values), max(values))] if values else None


@click.command()
@click.argument("cache_folder", metavar="CACHE", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--sources", default=",".join(SOURCES), show_default=True, help="Collections, as in learn_data; a+b is one."
)
@click.option("--teachers", default="e5,built-in", show_default=True, help=f"Old models: {', '.join(TEACHERS)}.")
@click.option("--variants", default="base", show_default=True, help=f"Ways to train: {', '.join(VARIANTS)}.")
@click.option("--seeds", default="0", show_default=True, help="Seeds, one run for each.")
@click.option("--limits", default="2000", show_default=True, help="Most documents of a collection, one run for each.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def main(cache_folder: Path, sources: str, teachers: str, variants: str, seeds: str, limits: str, output: Path) -> None:
    """Train variants on the collections that learn_data left in CACHE, and print their means and ranges.

    \b
    Example:
      python -m benchmarks.experiments.learn_choices CACHE --variants base,kl --seeds 0,1,2 --output choices.json
    """
    rows = json.loads(output.read_text("utf-8"))["runs"] if output.is_file() else []
    done = {(row["seed"], row["source"], row["teacher"], row["variant"], row["limit"]) for row in rows}
    wanted = (
        (int(seed), source, teacher, name, int(limit))
        for seed in seeds.split(",")
        for source in sources.split(",")
        for teacher in teachers.split(",")
        for name in variants.split(",")
        for limit in limits.split(",")
    )
    for seed, source, teacher, name, limit in wanted:
        if (seed, source, teacher, name, limit) not in done:
            rows.append(measure(cache_folder, source, teacher, name, seed, limit))
            found = {"summary": summary(rows), "prediction": prediction(rows)}
            result = {"machine": asdict(describe_machine()), **found, "runs": rows}
            output.write_text(json.dumps(result) + "\n", encoding="utf-8")
    click.echo(json.dumps({"summary": summary(rows), "prediction": prediction(rows)}, indent=1))


if __name__ == "__main__":
    main()
