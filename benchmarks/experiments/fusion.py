"""Accuracy of the fusions of dense search and BM25 on a judged task, all from the same two scores of each query.

The scores are computed as matrix products, since the sparse search of Qdrant's local mode takes a second per query at
ten thousand documents; a test checks that a search through Qdrant gives the same ranking.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from care_benchmarks.lexical import Bm25Matrix
from care_benchmarks.measures import per_query
from care_benchmarks.statistics import Comparison, compare_with_base
from care_benchmarks.taskfiles import content_digest, find_tasks, read_corpus, read_questions
from qdrant_client import models
from qdrant_client.hybrid.fusion import distribution_based_score_fusion, reciprocal_rank_fusion

from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError
from care_qdrant.model.pair import CareModel
from care_qdrant.search.fusion import BM25_SCALE, CANDIDATES, bm25_weight
from care_qdrant.types import Document, embedded_text

Scores = npt.NDArray[np.float64]
"""Shape (documents,)."""

ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Method:
    """One ranking method on one task."""

    name: str
    ndcg_at_10: float
    recall_at_100: float


@dataclass(frozen=True, slots=True)
class HybridResult:
    """All methods on one task."""

    task: str
    revision: str
    queries: int
    documents: int
    model: str
    fingerprint: str
    analyser: str
    candidates: int
    methods: list[Method]
    against_bm25: list[Comparison]
    """Comparisons of nDCG@10 with BM25 alone."""
    best_bm25_over_length: list[float]
    """Quartiles over queries of the best BM25 score divided by the length of the query's term vector."""


@click.command()
@click.argument("task", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="Model, as in care search.")
@output_option
def main(task: Path, model: str, output: Path) -> None:
    """Measure the fusions of dense search and BM25 on the retrieval task in the directory TASK.

    \b
    Example:
      python -m benchmarks.experiments.fusion examples/sample --output benchmarks/results/hybrid-sample.json
    """
    result = measure(task, CareModel.load(model))
    for method in result.methods:
        click.echo(f"{method.name:14} nDCG@10 {method.ndcg_at_10:.4f}  R@100 {method.recall_at_100:.4f}")
    save_measured(output, asdict(result))


def measure(directory: Path, model: CareModel) -> HybridResult:
    """Rank every query of a task with every method."""
    files = find_tasks(directory).retrieval
    if files is None:
        raise InputError(f"{directory}: has no retrieval task (corpus.jsonl, queries.jsonl, qrels.jsonl)")
    documents = list(read_corpus(files.corpus))
    queries, qrels = read_questions(files)
    runs: dict[str, dict[str, dict[str, float]]] = {}
    peaks = []
    for query, cosine, plain, lexical, terms in _scores(documents, queries, model):
        peaks.append(float(lexical.max()) * bm25_weight(terms) * BM25_SCALE)
        for name, ranking in {"bm25": _best(plain), **_rankings(cosine, lexical, terms)}.items():
            runs.setdefault(name, {})[query] = {documents[n].id: score for n, score in ranking.items()}
    scored = {name: per_query(qrels, run) for name, run in runs.items()}
    ndcg = {name: list(scores["nDCG@10"].values()) for name, scores in scored.items()}
    recall = {name: list(scores["R@100"].values()) for name, scores in scored.items()}
    return HybridResult(
        task=directory.name,
        revision=content_digest([files.corpus, files.queries, files.qrels]),
        queries=len(queries),
        documents=len(documents),
        model=model.name,
        fingerprint=model.fingerprint,
        analyser=bm25.ANALYSER,
        candidates=CANDIDATES,
        methods=[Method(name, float(np.mean(ndcg[name])), float(np.mean(recall[name]))) for name in runs],
        against_bm25=compare_with_base("bm25", ndcg),
        best_bm25_over_length=[float(value) for value in np.percentile(peaks, [25, 50, 75])],
    )


def _scores(
    documents: Sequence[Document], queries: Mapping[str, str], model: CareModel
) -> Iterator[tuple[str, Scores, Scores, Scores, list[float]]]:
    """Yield for each query its cosine, its BM25 and its weighted BM25 with every document, and the weights."""
    texts = [embedded_text(document.title, document.text) for document in documents]
    vectors = model.encode_document(texts)
    average = bm25.average_length(texts)
    matrix = Bm25Matrix([bm25.document_vector(text, average_length=average) for text in texts])
    for (query, text), vector in zip(queries.items(), model.encode_query(list(queries.values())), strict=True):
        terms, plain = model.query_terms(text), matrix.scores(bm25.query_vector(text))[0]
        yield query, (vectors @ vector).astype(np.float64), plain, matrix.scores(terms)[0], terms.values


def _rankings(cosine: Scores, lexical: Scores, terms: list[float]) -> dict[str, dict[int, float]]:
    """Return method → document number → score, with the best hundred of each method."""
    dense, by_terms = _best(cosine), {n: score for n, score in _best(lexical).items() if score > 0}
    union = np.array([*(dense.keys() | by_terms.keys())])
    scaled = lexical * bm25_weight(terms)
    rankings = {"dense": dense, "bm25, weighted": by_terms}
    for alpha in ALPHAS:
        linear = (alpha * cosine + (1 - alpha) * scaled)[union]
        rankings[f"linear {alpha}"] = dict(zip(union.tolist(), linear.tolist(), strict=True))
        rankings[f"min-max {alpha}"] = _weighted(_min_max(dense), _min_max(by_terms), alpha)
    rankings["dbsf"] = _by_number(distribution_based_score_fusion([_points(dense), _points(by_terms)], CANDIDATES))
    for k in (2, 60):
        fused = reciprocal_rank_fusion([_points(dense), _points(by_terms)], CANDIDATES, ranking_constant_k=k)
        rankings[f"rrf k={k}"] = _by_number(fused)
    return rankings


def _best(scores: Scores) -> dict[int, float]:
    """Return the best candidates with their scores, best first."""
    order = np.argsort(-scores, kind="stable")[:CANDIDATES]
    return dict(zip(order.tolist(), scores[order].tolist(), strict=True))


def _min_max(scores: Mapping[int, float]) -> dict[int, float]:
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    return {number: (score - low) / ((high - low) or 1.0) for number, score in scores.items()}


def _weighted(dense: Mapping[int, float], lexical: Mapping[int, float], alpha: float) -> dict[int, float]:
    numbers = dense.keys() | lexical.keys()
    return {n: alpha * dense.get(n, 0.0) + (1 - alpha) * lexical.get(n, 0.0) for n in numbers}


def _points(scores: Mapping[int, float]) -> list[models.ScoredPoint]:
    return [models.ScoredPoint(id=number, version=0, score=score) for number, score in scores.items()]


def _by_number(points: Sequence[models.ScoredPoint]) -> dict[int, float]:
    return {int(point.id): point.score for point in points}


if __name__ == "__main__":
    main()
