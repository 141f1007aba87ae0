"""Compare what could give `care learn` more than the documents: a query log, another start, hard candidates.

A variant is compared with the base of its tokens and seed on held-out documents (up to three sentences of each have to
find it) and, with ``--log``, on the last `TEST_QUESTIONS` of the log, none of which is trained on (nDCG@10 where the
old model's ten best documents are the relevant ones). The corpus' own queries are scored at the end and choose nothing.

    python -m benchmarks.experiments.learn_more dev/retrieval document-vectors.npy query-vectors.npy \\
        --document e5 --log log.jsonl --variants base,log-3000,hard --seeds 0,1,2 --output learn-more.json
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import numpy.typing as npt
import torch
from care_benchmarks.machine import describe_machine
from care_trainer.learn import held_out
from care_trainer.learn import table as tables
from care_trainer.learn.compose import Composer
from care_trainer.learn.queries import Questions, read_queries
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.start import built_in_tokenizer, mapped_start, own_start, token_vectors
from care_trainer.learn.tokens import TokenLists, tokenize, train_tokenizer
from tokenizers import Tokenizer
from torch import nn

from care_qdrant.model.gate import TOP, binary_ndcg
from care_qdrant.model.pair import CareModel
from care_qdrant.types import Vectors

from .learn_from_vectors import interval_of_mean, ndcg_of_ranks, ranks_by_score, read_corpus

TEST_QUESTIONS = 1_000
SENTENCES = 3
NEIGHBOURS = 50
"""Nearest stored vectors from which the hard candidates of a text are drawn."""
EVALUATIONS = 24
NOISE = 0.01
"""As in `care_trainer.learn.table`: the latest table whose score is within it of the best is kept."""

Numbers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Variant:
    """One way to train a table."""

    tokens: Literal["built-in", "own"] = "built-in"
    start: Literal["random", "built-in", "document", "document-mapped"] = "built-in"
    """Token vectors: random; the built-in pair's mapped by ridge regression; the old model's own of each token text
    (LightRetriever's scheme); these mapped in the same way."""
    log: int = 0
    """Questions of the log that are trained on."""
    hard: Literal["none", "static", "refreshed"] = "none"
    """Candidates near the stored vector of each text, or near its current query vector."""
    random: int = 1_024
    """Random negatives of a step; the hard candidates are two for each text of a batch."""


VARIANTS = {
    "base": Variant(),
    "log-1000": Variant(log=1_000),
    "log-3000": Variant(log=3_000),
    "log-6000": Variant(log=6_000),
    "document": Variant(start="document"),
    "document-mapped": Variant(start="document-mapped"),
    "hard": Variant(hard="static", random=0),
    "hard-added": Variant(hard="static"),
    "hard-refreshed": Variant(hard="refreshed", random=0),
    "hard-refreshed-added": Variant(hard="refreshed"),
    "own-base": Variant(tokens="own"),
    "own-random": Variant(tokens="own", start="random"),
    "own-document": Variant(tokens="own", start="document"),
    "own-document-mapped": Variant(tokens="own", start="document-mapped"),
    "own-log-3000": Variant(tokens="own", log=3_000),
}


@dataclass(frozen=True)
class Data:
    """What one seed trains on and measures with."""

    texts: list[str]
    vectors: Vectors
    train: Numbers
    sentences: list[str]
    """Of the held-out documents."""
    answers: Numbers
    """Row of each sentence's document."""
    queries: list[str]
    relevant: Numbers
    log: Questions

    @classmethod
    def of(
        cls, texts: list[str], vectors: Vectors, queries: list[str], relevant: Numbers, log: Questions, seed: int
    ) -> "Data":
        """Hold five percent of the documents out."""
        generator = np.random.default_rng([seed, 3])
        order = generator.permutation(len(texts))
        count = round(len(texts) * LearnSettings().held_out)
        asked = {
            (held_out.question_of(texts[row], "", generator), int(row)): None
            for row in order[:count]
            for _ in range(SENTENCES)
        }
        sentences, answers = zip(*asked, strict=True)
        return cls(texts, vectors, order[count:], list(sentences), np.array(answers), queries, relevant, log)


@dataclass(frozen=True)
class Found:
    """What one variant reaches."""

    figures: dict[str, Any]
    held_out: Scores
    """Reciprocal rank of each held-out document, its sentences averaged."""
    agreement: Scores
    """nDCG@10 of each test question of the log against the old model's ranking."""
    queries: Scores
    """nDCG@10 of each query of the corpus."""


def run(variant: Variant, data: Data, settings: LearnSettings, document: Path) -> Found:
    """Train a variant and measure it."""
    began = time.process_time()
    is_own = variant.tokens == "own"
    tokenizer = (
        train_tokenizer([data.texts[row] for row in data.train], settings.vocabulary, settings.max_tokens)
        if is_own
        else built_in_tokenizer(settings.max_tokens)
    )
    composer = Composer(tokenizer, parts=is_own)

    def read(texts: Sequence[str]) -> TokenLists:
        return composer.expand(tokenize(tokenizer, texts))

    log = Questions(data.log.texts[: variant.log], data.log.vectors[: variant.log])
    whole = tokenize(tokenizer, [*(data.texts[row] for row in data.train), *log.texts])
    targets = np.concatenate([data.vectors[data.train], log.vectors])
    sentences, texts = read(data.sentences), composer.expand(whole)

    def reciprocal_ranks(table: Vectors) -> Scores:
        return np.asarray(1 / held_out.ranks(tables.encode(table, sentences), data.vectors, data.answers))

    start = _start(variant, tokenizer, composer, whole, targets, document, settings)
    table, history = _fit(
        start, texts, targets, len(data.train), variant, settings, lambda one: float(reciprocal_ranks(one).mean())
    )
    if variant.start == "random":
        table = np.where(tables.frequencies(texts, len(table))[:, None] > 0, table, np.float32(0))
    table = composer.fold(table, targets.mean(axis=0))

    def encode(questions: Sequence[str]) -> Vectors:
        return tables.encode(table, tokenize(tokenizer, questions))

    ranks = 1 / held_out.ranks(encode(data.sentences), data.vectors, data.answers)
    by_document = np.array([ranks[data.answers == row].mean() for row in np.unique(data.answers)])
    test = Questions(data.log.texts[-TEST_QUESTIONS:], data.log.vectors[-TEST_QUESTIONS:])
    best = (test.vectors @ data.vectors.T, encode(test.texts) @ data.vectors.T)
    tens = [np.argsort(-scores, axis=1, kind="stable")[:, :TOP].tolist() for scores in best]
    agreement = np.array([binary_ndcg(ours, theirs) for theirs, ours in zip(*tens, strict=True)])
    queries = ndcg_of_ranks(ranks_by_score(encode(data.queries) @ data.vectors.T, data.relevant))
    kept = [row for row in history if row["kept"]][-1]
    top = max(row["score"] for row in history)
    figures = {
        "held_out_mrr": interval_of_mean(by_document),
        "log_ndcg_at_10": interval_of_mean(agreement),
        "queries_ndcg_at_10": interval_of_mean(queries),
        "start_mrr": round(history[0]["score"], 4),
        "kept_step": kept["step"],
        "first_step_within_noise": next(row["step"] for row in history if row["score"] >= top - NOISE),
        "steps": history[-1]["step"],
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    return Found(figures, by_document, agreement, np.asarray(queries))


def _start(
    variant: Variant,
    tokenizer: Tokenizer,
    composer: Composer,
    whole: TokenLists,
    targets: Vectors,
    document: Path,
    settings: LearnSettings,
) -> Vectors:
    size = tokenizer.get_vocab_size()
    if variant.start == "random":
        return tables.start_table(composer.expand(whole), size, targets.shape[1], settings.seed)
    known = _known(None if variant.start == "built-in" else document, tokenizer.to_str())
    if variant.start != "document":
        return composer.unfold(mapped_start(known, whole, targets))
    return composer.unfold(own_start(known, whole))


@lru_cache
def _known(model: Path | None, tokenizer: str) -> Vectors:
    """Return a model's vectors of the tokens of a tokenizer, given as JSON; None is the built-in pair."""
    pair = CareModel.load() if model is None else CareModel.load(str(model))
    return token_vectors(Tokenizer.from_str(tokenizer), pair.query_encoder)


def _fit(
    table: Vectors,
    tokens: TokenLists,
    targets: Vectors,
    documents: int,
    variant: Variant,
    settings: LearnSettings,
    score: Callable[[Vectors], float],
) -> tuple[Vectors, list[dict[str, Any]]]:
    """Train as `care_trainer.learn.table.fit_table` does, with a choice of negatives."""
    steps = settings.epochs * -(-len(tokens) // settings.batch)
    every = max(1, steps // EVALUATIONS)
    weights = nn.Parameter(torch.from_numpy(table.copy()))
    optimizer = torch.optim.SparseAdam([weights], lr=settings.learning_rate)
    generator = np.random.default_rng([settings.seed, 1])
    history: list[dict[str, Any]] = [{"step": 0, "score": score(table), "kept": True}]
    kept, best = table, history[0]["score"]
    near = None if variant.hard == "none" else _neighbours(targets, targets[:documents])
    order: Numbers = np.empty(0, dtype=np.int64)
    for step in range(1, steps + 1):
        if len(order) < settings.batch:
            order = generator.permutation(len(tokens))
        rows, order = order[: settings.batch], order[settings.batch :]
        others = generator.integers(len(targets), size=variant.random)
        if near is not None:
            columns = generator.integers(near.shape[1], size=(len(rows), 2))
            others = np.concatenate([others, near[rows[:, None], columns].reshape(-1)])
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 - (step - 1) / steps)
        batch = tokens.take(rows).drop(settings.token_dropout, generator)
        used, places = np.unique(batch.flat, return_inverse=True)
        part = weights.detach()[used].requires_grad_()
        sums = nn.functional.embedding_bag(
            torch.from_numpy(places), part, torch.from_numpy(batch.starts[:-1]), mode="sum"
        )
        loss = tables.alignment_loss(
            nn.functional.normalize(sums, dim=1),
            torch.from_numpy(targets[rows]),
            torch.from_numpy(targets[others]),
            settings.temperature,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        assert part.grad is not None
        weights.grad = torch.sparse_coo_tensor(
            torch.from_numpy(used)[None], part.grad, weights.shape, check_invariants=True, is_coalesced=True
        )
        optimizer.step()
        if step % every and step != steps:
            continue
        found = score(weights.detach().numpy())
        best = max(best, found)
        history.append({"step": step, "score": found, "kept": found >= best - NOISE})
        if history[-1]["kept"]:
            kept = weights.detach().numpy().copy()
        if variant.hard == "refreshed":
            near = _neighbours(tables.encode(weights.detach().numpy(), tokens), targets[:documents])
    return kept, history


def _neighbours(queries: Vectors, documents: Vectors) -> Numbers:
    """Return the rows of the documents nearest to each query, (queries, `NEIGHBOURS`); row n is no neighbour of n."""
    found = []
    for start in range(0, len(queries), 1_024):
        scores = queries[start : start + 1_024] @ documents.T
        own = np.arange(start, min(start + len(scores), len(documents)))
        scores[own - start, own] = -np.inf
        found.append(np.argpartition(-scores, NEIGHBOURS, axis=1)[:, :NEIGHBOURS])
    return np.concatenate(found)


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("document_vectors", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("query_vectors", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--document",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder of the sentence-transformers model that made the vectors.",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="JSON lines with text and vector: questions of another source than the corpus' queries.",
)
@click.option("--variants", default=",".join(VARIANTS), show_default=True)
@click.option("--seeds", default="0", show_default=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(
    corpus: Path,
    document_vectors: Path,
    query_vectors: Path,
    document: Path,
    log: Path,
    variants: str,
    seeds: str,
    output: Path,
) -> None:
    """Train variants on CORPUS with DOCUMENT_VECTORS; a base among them is what the others are compared with."""
    texts, queries, relevant = read_corpus(corpus)
    stored, asked = np.load(document_vectors), np.load(query_vectors)
    questions = read_queries(log, stored.shape[1]).log
    assert questions is not None
    old_model = ndcg_of_ranks(ranks_by_score(asked @ stored.T, relevant))
    result: dict[str, Any] = {
        "machine": asdict(describe_machine()),
        "documents": len(texts),
        "log": len(questions.texts),
        "old_model": interval_of_mean(old_model),
        "runs": [],
    }
    for seed in map(int, seeds.split(",")):
        data = Data.of(texts, stored, queries, relevant, questions, seed)
        bases: dict[str, Found] = {}
        for name in variants.split(","):
            variant = VARIANTS[name]
            torch.manual_seed(seed)
            found = run(variant, data, LearnSettings(seed=seed), document)
            if name.endswith("base"):
                bases[variant.tokens] = found
            row = {"variant": name, "seed": seed, **found.figures}
            if (base := bases.get(variant.tokens)) is not None and base is not found:
                row["minus_base"] = {
                    "held_out_mrr": interval_of_mean(found.held_out - base.held_out),
                    "log_ndcg_at_10": interval_of_mean(found.agreement - base.agreement),
                    "queries_ndcg_at_10": interval_of_mean(found.queries - base.queries),
                }
            result["runs"].append(row)
            output.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
