"""Which fusion of dense vectors and BM25 is best on a judged task: every fusion from the same two scores of each query.

The scores are computed here, exactly, instead of by Qdrant's local mode, whose sparse search takes a second per query
at ten thousand documents; a test holds that a search through Qdrant gives the same ranking.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import numpy.typing as npt
from qdrant_client import models
from qdrant_client.hybrid.fusion import distribution_based_score_fusion, reciprocal_rank_fusion
from scipy import sparse

from care_benchmarks.machine import Machine, describe_machine
from care_benchmarks.measures import per_query
from care_benchmarks.statistics import Comparison, compare_with_base
from care_benchmarks.taskfiles import content_digest, find_tasks, read_corpus, read_questions
from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError
from care_qdrant.search.fusion import CANDIDATES, bm25_weight
from care_qdrant.types import Document, embedded_text

if TYPE_CHECKING:
    from care_qdrant.model import CareModel

Scores = npt.NDArray[np.float32]
"""Shape (documents,)."""

ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Method:
    """One way to rank, on one task."""

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
    """Of nDCG@10, each method against BM25 alone."""
    best_bm25_over_root_terms: list[float]
    """Quartiles over the queries of the best BM25 score divided by the root of the number of terms."""
    machine: Machine


@click.command()
@click.argument("task", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="As in care search.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def hybrid(task: Path, model: str, output: Path) -> None:
    """Measure the fusions of dense search and BM25 on the retrieval task in the directory TASK.

    \b
    Example:
      care-bench hybrid examples/sample --output benchmarks/results/hybrid-sample.json
    """
    from care_qdrant.model import CareModel

    result = measure(task, CareModel.load(model))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(asdict(result), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    for method in result.methods:
        click.echo(f"{method.name:14} nDCG@10 {method.ndcg_at_10:.4f}  R@100 {method.recall_at_100:.4f}")


def measure(directory: Path, model: "CareModel") -> HybridResult:
    """Rank every query of a task with every method."""
    files = find_tasks(directory).retrieval
    if files is None:
        raise InputError(f"{directory}: has no retrieval task (corpus.jsonl, queries.jsonl, qrels.jsonl)")
    documents = list(read_corpus(files.corpus))
    queries, qrels = read_questions(files)
    runs: dict[str, dict[str, dict[str, float]]] = {}
    peaks = []
    for query, cosine, lexical, terms in _scores(documents, queries, model):
        peaks.append(float(lexical.max()) / max(1, terms) ** 0.5)
        for name, ranking in _rankings(cosine, lexical, terms).items():
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
        best_bm25_over_root_terms=[float(value) for value in np.percentile(peaks, [25, 50, 75])],
        machine=describe_machine(),
    )


def _scores(
    documents: Sequence[Document], queries: Mapping[str, str], model: "CareModel"
) -> Iterator[tuple[str, Scores, Scores, int]]:
    """Give for each query its cosine and its BM25 with every document, and the number of its terms."""
    texts = [embedded_text(document.title, document.text) for document in documents]
    vectors = model.encode_document(texts)
    weights, columns = _term_weights(texts)
    for (query, text), vector in zip(queries.items(), model.encode_query(list(queries.values())), strict=True):
        terms = bm25.query_vector(text)
        known = [(columns[i], count) for i, count in zip(terms.indices, terms.values, strict=True) if i in columns]
        counts = np.zeros(len(columns), dtype=np.float32)
        for column, count in known:
            counts[column] = count
        yield query, vectors @ vector, weights @ counts, len(terms.indices)


def _term_weights(texts: Sequence[str]) -> tuple[sparse.csr_array, dict[int, int]]:
    """Give BM25's document side times the inverse document frequency, and the column of each term id."""
    average = bm25.average_length(texts)
    vectors = [bm25.document_vector(text, average_length=average) for text in texts]
    columns = {index: n for n, index in enumerate(sorted({i for vector in vectors for i in vector.indices}))}
    column = np.array([columns[index] for vector in vectors for index in vector.indices])
    row = np.repeat(np.arange(len(texts)), [len(vector.indices) for vector in vectors])
    frequency = np.bincount(column, minlength=len(columns))
    idf = np.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
    values = np.concatenate([vector.values for vector in vectors]) * idf[column]
    shape = (len(texts), len(columns))
    return sparse.csr_array((values.astype(np.float32), (row, column)), shape=shape), columns


def _rankings(cosine: Scores, lexical: Scores, terms: int) -> dict[str, dict[int, float]]:
    """Give method → document number → score, the best hundred of each."""
    dense, by_terms = _best(cosine), {n: score for n, score in _best(lexical).items() if score > 0}
    union = np.array([*(dense.keys() | by_terms.keys())])
    scaled = lexical * bm25_weight(max(1, terms))
    rankings = {"dense": dense, "bm25": by_terms}
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
    """Give the best candidates with their scores, best first."""
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
