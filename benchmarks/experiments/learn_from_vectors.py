"""Score `care learn` on a judged corpus whose document vectors are given, against the model that made them and BM25.

The corpus becomes a collection in LangChain's layout, with a BM25 vector beside the dense one, and nothing of ours in
its metadata. `learn` sees documents and vectors; queries and judgements serve for the scores alone.

    python benchmarks/experiments/learn_from_vectors.py dev/retrieval document-vectors.npy query-vectors.npy \\
        --seeds 0,1,2 --shares 1 --output benchmarks/results/learn-e5-small.json
"""

import gzip
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from care_benchmarks.machine import describe_machine
from qdrant_client import QdrantClient, models

from care_qdrant.encoders import bm25
from care_qdrant.learn.learn import learn
from care_qdrant.learn.settings import LearnSettings
from care_qdrant.model import CareModel
from care_qdrant.search.fusion import bm25_weight
from care_qdrant.types import Vectors

COLLECTION = "articles"
SPLITS = (0.2, 0.4, 0.6, 0.8)
"""Shares of the dense score that are listed beside the chosen one."""
BOOTSTRAP = 2_000

Scores = npt.NDArray[np.floating[Any]]


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("document_vectors", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("query_vectors", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--seeds", default="0,1,2", show_default=True)
@click.option("--shares", default="1", show_default=True, help="Fractions of the documents that learning sees.")
@click.option("--teacher", default="multilingual-e5-small", show_default=True, help="Name of the old model.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(
    corpus: Path, document_vectors: Path, query_vectors: Path, seeds: str, shares: str, teacher: str, output: Path
) -> None:
    """Learn from CORPUS with DOCUMENT_VECTORS and score its queries."""
    documents, queries, relevant = _read(corpus)
    stored, asked = np.load(document_vectors), np.load(query_vectors)
    lexical = _bm25_scores(documents, queries)
    old = asked @ stored.T
    result: dict[str, Any] = {
        "machine": asdict(describe_machine()),
        "teacher": teacher,
        "dim": stored.shape[1],
        "documents": len(documents),
        "queries": len(queries),
        "bm25": _figures(lexical, relevant),
        "old_model": _figures(old, relevant),
        "old_model_with_bm25": _figures(_standardised(old) + _standardised(lexical), relevant),
        "runs": [],
    }
    for share in (float(part) for part in shares.split(",")):
        for seed in (int(part) for part in seeds.split(",")):
            result["runs"].append(_run(documents, stored, queries, relevant, lexical, old, seed=seed, share=share))
            output.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            click.echo(json.dumps({key: value for key, value in result["runs"][-1].items() if key != "report"}))


def _run(
    documents: Sequence[str],
    stored: Vectors,
    queries: Sequence[str],
    relevant: npt.NDArray[np.int64],
    lexical: Scores,
    old: Scores,
    *,
    seed: int,
    share: float,
) -> dict[str, Any]:
    """Learn from a share of the documents, and search all of them."""
    seen = np.random.default_rng(seed).permutation(len(documents))[: round(share * len(documents))]
    began = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        client = QdrantClient(":memory:")
        write_collection(client, [documents[row] for row in seen], stored[seen])
        report = learn(client, COLLECTION, Path(scratch) / "learned", settings=LearnSettings(seed=seed))
        cpu_seconds = time.process_time() - began
        vectors = CareModel.load(Path(scratch) / "learned").encode_query(queries)
    dense = vectors @ stored.T
    new = np.setdiff1d(np.arange(len(documents)), seen)
    mixed = {alpha: alpha * dense + (1 - alpha) * lexical for alpha in (report.alpha or 0.5, *SPLITS)}
    return {
        "seed": seed,
        "share": share,
        "cpu_seconds": round(cpu_seconds, 1),
        "dense": _figures(dense, relevant),
        "dense_of_unseen_answers": _figures(dense, relevant, np.isin(relevant, new)) if len(new) else None,
        "alpha": report.alpha,
        "with_bm25": _figures(mixed[report.alpha or 0.5], relevant),
        "with_bm25_by_alpha": {str(alpha): _figures(mixed[alpha], relevant)["ndcg_at_10"] for alpha in SPLITS},
        "old_minus_learned": _interval(_ndcg(old, relevant) - _ndcg(dense, relevant)),
        "report": {key: value for key, value in asdict(report).items() if key not in {"folder", "history"}},
    }


def write_collection(client: QdrantClient, documents: Sequence[str], vectors: Vectors) -> None:
    """Write documents in LangChain's layout under the unnamed vector."""
    client.create_collection(COLLECTION, models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE))
    points = (
        models.PointStruct(id=row, vector=vector.tolist(), payload={"page_content": text, "metadata": {}})
        for row, (text, vector) in enumerate(zip(documents, vectors, strict=True))
    )
    client.upload_points(COLLECTION, points, wait=True)


def _read(corpus: Path) -> tuple[list[str], list[str], npt.NDArray[np.int64]]:
    """Return the texts of documents and queries, and the row of each query's one relevant document."""
    rows = {name: _lines(corpus / f"{name}.jsonl.gz") for name in ("corpus", "queries", "qrels")}
    places = {row["id"]: number for number, row in enumerate(rows["corpus"])}
    answers = {row["query_id"]: places[row["document_id"]] for row in rows["qrels"]}
    relevant = np.array([answers[row["id"]] for row in rows["queries"]])
    return [row["text"] for row in rows["corpus"]], [row["text"] for row in rows["queries"]], relevant


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def _bm25_scores(documents: Sequence[str], queries: Sequence[str]) -> Scores:
    """Return the sparse part of the product's linear fusion, (queries, documents)."""
    average = bm25.average_length(documents)
    postings: dict[int, list[tuple[int, float]]] = {}
    for row, text in enumerate(documents):
        vector = bm25.document_vector(text, average_length=average)
        for term, weight in zip(vector.indices, vector.values, strict=True):
            postings.setdefault(term, []).append((row, weight))
    lists = {
        term: (np.array([row for row, _ in found]), np.array([weight for _, weight in found]))
        for term, found in postings.items()
    }
    scores = np.zeros((len(queries), len(documents)), dtype=np.float32)
    for number, text in enumerate(queries):
        vector = bm25.query_vector(text)
        for term, count in zip(vector.indices, vector.values, strict=True):
            if term in lists:
                rows, weights = lists[term]
                idf = np.log(1 + (len(documents) - len(rows) + 0.5) / (len(rows) + 0.5))
                scores[number, rows] += count * idf * weights
        scores[number] *= bm25_weight(len(vector.indices)) if vector.indices else 0
    return scores


def _standardised(scores: Scores) -> Scores:
    spread = np.maximum(scores.std(axis=1, keepdims=True), 1e-9)
    return np.asarray((scores - scores.mean(axis=1, keepdims=True)) / spread)


def _ndcg(scores: Scores, relevant: npt.NDArray[np.int64]) -> Scores:
    ranks = _ranks(scores, relevant)
    return np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0.0)


def _ranks(scores: Scores, relevant: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    own = scores[np.arange(len(relevant)), relevant]
    return np.asarray((scores > own[:, None]).sum(axis=1) + 1)


def _figures(
    scores: Scores, relevant: npt.NDArray[np.int64], only: npt.NDArray[np.bool_] | None = None
) -> dict[str, Any]:
    rows = np.ones(len(relevant), dtype=bool) if only is None else only
    ndcg, ranks = _ndcg(scores, relevant)[rows], _ranks(scores, relevant)[rows]
    return {
        "queries": int(rows.sum()),
        "ndcg_at_10": round(float(ndcg.mean()), 4),
        "interval": _interval(ndcg)["interval"],
        "recall_at_100": round(float((ranks <= 100).mean()), 4),
    }


def _interval(values: Scores) -> dict[str, Any]:
    """Return the mean and its 95 % interval over resampled queries."""
    generator = np.random.default_rng(0)
    means = [float(generator.choice(values, len(values)).mean()) for _ in range(BOOTSTRAP)]
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": round(float(values.mean()), 4), "interval": [round(float(low), 4), round(float(high), 4)]}


if __name__ == "__main__":
    main()
