"""Score `care learn` on a judged corpus whose document vectors are given, against the model that made them and BM25.

The corpus becomes a collection in LangChain's layout, with nothing of ours in its metadata. `learn` sees documents and
vectors, `attach` adds BM25, and the scores are those of `Retriever`, dense and as it searches by default (hybrid);
`CareVectorStore` has to find the same. Queries and judgements serve for the scores alone.
"""

import gzip
import json
import resource
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
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from llama_index.core import VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from benchmarks.experiments.single_answer import Bm25, Judged, Scores
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.measures import TOP, ndcg_at_10
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.types import Hit, Vectors
from care_qdrant.vectors.attach import attach_vector

COLLECTION = "articles"
SPLITS = (0.2, 0.4, 0.6, 0.8)
"""Shares of the dense score that are listed beside the chosen one."""
BOOTSTRAP = 2_000
DEPTH = 100
MODES: tuple[Mode, ...] = ("dense", "auto")


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("document_vectors", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("query_vectors", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds of learning, one run for each.")
@click.option("--shares", default="1", show_default=True, help="Fractions of the documents that learning sees.")
@click.option("--teacher", default="multilingual-e5-small", show_default=True, help="Name of the old model.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def main(
    corpus: Path,
    document_vectors: Path,
    query_vectors: Path,
    seeds: str,
    shares: str,
    teacher: str,
    output: Path,
) -> None:
    """Learn from CORPUS with DOCUMENT_VECTORS and score its queries.

    \b
    Example:
      python -m benchmarks.experiments.learn_from_vectors dev/retrieval document-vectors.npy query-vectors.npy \
        --output benchmarks/results/learn-e5-small.json
    """
    documents, queries, relevant = read_corpus(corpus)
    stored, asked = np.load(document_vectors), np.load(query_vectors)
    lexical = Bm25(DEFAULT).scores(Judged("articles", queries, documents, relevant))
    old = asked @ stored.T
    result: dict[str, Any] = {
        "machine": asdict(describe_machine()),
        "teacher": teacher,
        "dim": stored.shape[1],
        "documents": len(documents),
        "queries": len(queries),
        "bm25": _figures(ranks_by_score(lexical, relevant)),
        "old_model": _figures(ranks_by_score(old, relevant)),
        "old_model_with_bm25": _figures(
            ranks_by_score(0.7 * _standardised(old) + 0.3 * _standardised(lexical), relevant)
        ),
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
        write_collection(client, documents, stored, seen)
        report = learn(client, COLLECTION, Path(scratch) / "learned", settings=LearnSettings(seed=seed))
        cpu_seconds = time.process_time() - began
        later = np.setdiff1d(np.arange(len(documents)), seen)
        upload(client, documents, stored, later)
        attach_vector(client, COLLECTION, None)
        model = CareModel.load(Path(scratch) / "learned")
        searched = {mode: Retriever(client, COLLECTION, model, mode=mode).search(queries, DEPTH) for mode in MODES}
        agreeing = _llama_index_agrees(client, Path(scratch) / "learned", queries[:50], searched["auto"])
        vectors = model.encode_query(queries)
    dense, hybrid = (_ranks_of(searched[mode], relevant) for mode in MODES)
    products = vectors @ stored.T
    return {
        "seed": seed,
        "share": share,
        "cpu_seconds": round(cpu_seconds, 1),
        "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "dense": _figures(dense),
        "dense_of_answers_added_later": _figures(dense[np.isin(relevant, later)]) if len(later) else None,
        "alpha": report.alpha,
        "with_bm25": _figures(hybrid),
        "with_bm25_by_alpha": {
            str(alpha): _figures(ranks_by_score(alpha * products + (1 - alpha) * lexical, relevant))["ndcg_at_10"]
            for alpha in SPLITS
        },
        "old_minus_learned": interval_of_mean(ndcg_of_ranks(ranks_by_score(old, relevant)) - ndcg_of_ranks(dense)),
        "llama_index_agrees": agreeing,
        "report": {key: value for key, value in asdict(report).items() if key not in {"folder", "history"}},
    }


def write_collection(
    client: QdrantClient, documents: Sequence[str], vectors: Vectors, rows: npt.NDArray[np.int64]
) -> None:
    """Write some documents in LangChain's layout under the unnamed vector."""
    client.create_collection(COLLECTION, models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE))
    upload(client, documents, vectors, rows)


def upload(client: QdrantClient, documents: Sequence[str], vectors: Vectors, rows: npt.NDArray[np.int64]) -> None:
    """Add documents as a foreign tool does; the row is the point's id."""
    points = (
        models.PointStruct(
            id=int(row), vector=vectors[row].tolist(), payload={"page_content": documents[row], "metadata": {}}
        )
        for row in rows
    )
    client.upload_points(COLLECTION, points, wait=True)


def _llama_index_agrees(
    client: QdrantClient, folder: Path, queries: Sequence[str], searched: Sequence[Sequence[Hit]]
) -> float:
    """Return the fraction of queries for which LlamaIndex finds the same ten documents in the same order."""
    embedding = CareEmbedding(model=str(folder))
    store = CareVectorStore(collection_name=COLLECTION, client=client, embedding=embedding)
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    retriever = index.as_retriever(similarity_top_k=10)
    same = [
        [node.text for node in retriever.retrieve(query)] == [hit.text for hit in hits[:10]]
        for query, hits in zip(queries, searched, strict=False)
    ]
    return sum(same) / len(same)


def read_corpus(corpus: Path) -> tuple[list[str], list[str], npt.NDArray[np.int64]]:
    """Return the texts of documents and queries, and the row of each query's one relevant document."""
    rows = {name: _lines(corpus / f"{name}.jsonl.gz") for name in ("corpus", "queries", "qrels")}
    places = {row["id"]: number for number, row in enumerate(rows["corpus"])}
    answers = {row["query_id"]: places[row["document_id"]] for row in rows["qrels"]}
    relevant = np.array([answers[row["id"]] for row in rows["queries"]])
    return [row["text"] for row in rows["corpus"]], [row["text"] for row in rows["queries"]], relevant


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def _standardised(scores: Scores) -> Scores:
    spread = np.maximum(scores.std(axis=1, keepdims=True), 1e-9)
    return np.asarray((scores - scores.mean(axis=1, keepdims=True)) / spread)


def ranks_by_score(scores: Scores, relevant: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rank of each query's relevant document, from 1; equal scores share a rank."""
    own = scores[np.arange(len(relevant)), relevant]
    return np.asarray((scores > own[:, None]).sum(axis=1) + 1)


def _ranks_of(found: Sequence[Sequence[Hit]], relevant: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rank of each query's relevant document among its hits; one beyond the last where it is not there."""
    ranks = np.full(len(relevant), DEPTH + 1)
    for number, hits in enumerate(found):
        places = [place for place, hit in enumerate(hits, start=1) if int(hit.point_id) == relevant[number]]
        ranks[number] = min(places, default=DEPTH + 1)
    return ranks


def ndcg_of_ranks(ranks: npt.NDArray[np.int64]) -> Scores:
    """Return the nDCG@10 of each query that has one relevant document, by its rank."""
    return np.array(ndcg_at_10([range(1, TOP + 1)] * len(ranks), [{rank} for rank in ranks.tolist()]))


def _figures(ranks: npt.NDArray[np.int64]) -> dict[str, Any]:
    ndcg = ndcg_of_ranks(ranks)
    return {
        "queries": len(ranks),
        "ndcg_at_10": round(float(ndcg.mean()), 4),
        "interval": interval_of_mean(ndcg)["interval"],
        "recall_at_100": round(float((ranks <= 100).mean()), 4),
    }


def interval_of_mean(values: Scores) -> dict[str, Any]:
    """Return the mean and its 95 % interval over resampled queries."""
    generator = np.random.default_rng(0)
    means = [float(generator.choice(values, len(values)).mean()) for _ in range(BOOTSTRAP)]
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": round(float(values.mean()), 4), "interval": [round(float(low), 4), round(float(high), 4)]}


if __name__ == "__main__":
    main()
