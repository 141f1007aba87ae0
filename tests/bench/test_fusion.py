"""The rankings that the benchmark scores are those that a user gets from Qdrant."""

import json
from pathlib import Path

import pytest
from qdrant_client import QdrantClient

from benchmarks.experiments import fusion
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Chunk, Document
from tests.search.conftest import COLLECTION, fill
from tests.tiny import TEXTS, HashModel, medical_texts

QUERIES = {f"q{n}": text for n, text in enumerate(TEXTS[:4])}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    documents = [{"id": f"d{n}", "text": text} for n, text in enumerate(medical_texts(40))]
    queries = [{"id": query, "text": text} for query, text in QUERIES.items()]
    qrels = [
        {"query_id": query["id"], "document_id": document["id"], "score": 1}
        for query in queries
        for document in documents
        if query["text"] in document["text"]
    ]
    for name, rows in (("corpus", documents), ("queries", queries), ("qrels", qrels)):
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_the_benchmark_ranks_as_qdrant_does(client: QdrantClient) -> None:
    model = HashModel()
    documents = [Document(f"d{n}", text) for n, text in enumerate(medical_texts(40))]
    fill(client, model, [Chunk(document, document.text) for document in documents])
    for query, cosine, lexical, terms in fusion._scores(documents, QUERIES, model):
        rankings = fusion._rankings(cosine, lexical, terms)
        for name, options in {
            "dense": {"mode": "dense"},
            "linear 0.4": {"mode": "hybrid", "alpha": 0.4},
            "dbsf": {"mode": "hybrid", "fusion": "dbsf"},
        }.items():
            [hits] = Retriever(client, COLLECTION, model, **options).search([QUERIES[query]], top_k=5)
            best = sorted(rankings[name].values(), reverse=True)[:5]
            assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-4)
            assert rankings[name][int(hits[0].document_id[1:])] == pytest.approx(best[0], rel=1e-4)


def test_a_task_gives_every_method_and_its_difference_to_bm25(task: Path) -> None:
    result = fusion.measure(task, HashModel())
    scores = {method.name: method.ndcg_at_10 for method in result.methods}
    assert scores["bm25"] > scores["dense"]
    assert {"dense", "bm25", "linear 0.4", "min-max 0.4", "dbsf", "rrf k=2"} <= scores.keys()
    differences = {comparison.other: comparison.difference for comparison in result.against_bm25}
    assert differences["dense"] == pytest.approx(scores["dense"] - scores["bm25"])
    assert (result.queries, result.documents) == (4, 40)
