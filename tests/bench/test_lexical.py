"""The matrix search that stands in for the embedded database's slow one, against that one."""

from pathlib import Path

import numpy as np
import pytest
from care_benchmarks.lexical import MatrixPath, check_against
from care_benchmarks.taskfiles import find_tasks, read_corpus, read_questions
from qdrant_client import QdrantClient

from care_qdrant.errors import CareError
from care_qdrant.index.ingest import ingest
from care_qdrant.index.settings import IngestSettings
from care_qdrant.search.retriever import Mode, Retriever
from tests.tiny import HashModel

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)

SAMPLE = Path(__file__).parents[2] / "examples/sample"
MODEL = HashModel(dim=16)


@pytest.fixture(scope="module")
def filled() -> QdrantClient:
    files = find_tasks(SAMPLE).retrieval
    assert files
    client = QdrantClient(":memory:")
    ingest(
        read_corpus(files.corpus), MODEL, client, "sample", settings=IngestSettings(overflow="truncate", sparse=True)
    )
    return client


def queries() -> list[str]:
    files = find_tasks(SAMPLE).retrieval
    assert files
    return [*list(read_questions(files)[0].values())[:4], "zzz 完全无关", "EGFR 高 高 高"]


@pytest.mark.parametrize("mode", ["sparse", "hybrid"])
def test_scores_and_documents_equal_those_of_qdrant(filled: QdrantClient, mode: Mode) -> None:
    matrix = MatrixPath(filled, "sample", MODEL, mode)  # type: ignore[arg-type]
    retriever = Retriever(filled, "sample", MODEL, mode=mode)  # type: ignore[arg-type]
    for query, hits in zip(queries(), retriever.search(queries(), 20), strict=True):
        found = matrix(query, 20)
        assert list(found.values()) == pytest.approx([hit.score for hit in hits], abs=1e-5)
        # Documents whose scores are equal to the last digit may change places.
        assert len(found.keys() & {hit.document_id for hit in hits}) >= len(hits) - 1


def test_only_among_the_candidates(filled: QdrantClient) -> None:
    matrix = MatrixPath(filled, "sample", MODEL, "hybrid")  # type: ignore[arg-type]
    among = ["cardio-001", "cardio-002", "cardio-003"]
    assert set(matrix(queries()[0], 3, among)) == set(among)


def test_a_changed_formula_stops_the_run(filled: QdrantClient) -> None:
    matrix = MatrixPath(filled, "sample", MODEL, "sparse")  # type: ignore[arg-type]
    retriever = Retriever(filled, "sample", mode="sparse")
    check_against(retriever, matrix, queries(), 10)
    matrix._bm25._weights = matrix._bm25._weights * np.float64(1.01)
    with pytest.raises(CareError, match="the matrix search gives"):
        check_against(retriever, matrix, queries(), 10)
