"""CPU time of dense, BM25 and hybrid queries in the embedded database: qdrant-client's own search against ours."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
from care_benchmarks.taskfiles import find_tasks, read_corpus, read_questions
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import sparse_vector
from care_qdrant.encoders.terms import bm25
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.fusion import fused_request
from care_qdrant.types import embedded_text

from .measured import output_option, save_measured, shown

Kind = Literal["dense", "sparse", "hybrid"]

DIM = 256
TOP_K = 10
NAME = "corpus"
BATCH_POINTS = 1_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Queries of one kind, each asked of both."""

    kind: Kind
    queries: int
    own_cpu_ms: float
    """Median of qdrant-client's own search."""
    first_cpu_ms: float
    """First query on arrays, which copies the stored indices, and the weights that it meets."""
    second_cpu_ms: float
    """Second query: it copies the stored weights that only it meets."""
    cpu_ms: float
    """Median on arrays."""
    times_faster: float
    times_faster_at_first: float
    """Ratio of the times of the first query."""
    equal: bool
    """Whether ids, order and scores of all hits were equal."""


@click.command()
@click.option(
    "--task",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("examples/sample"),
    show_default=True,
    help="Folder of a task with a corpus and queries.",
)
@click.option(
    "--queries", type=click.IntRange(2), default=20, show_default=True, help="Number of queries of each kind."
)
@output_option
def main(task: Path, queries: int, output: Path) -> None:
    """Ask two equal databases the same queries in turn, so that load on the machine affects both alike.

    \b
    Example:
      python -m benchmarks.perf.embedded_bm25 --output benchmarks/results/embedded-bm25.json
    """
    files = find_tasks(task).retrieval
    if files is None:
        raise click.UsageError(f"{task}: holds no retrieval task")
    texts = [embedded_text(document.title, document.text) for document in read_corpus(files.corpus)]
    asked = random.Random(0).sample(sorted(read_questions(files)[0].values()), queries)
    found = [shown(measure(kind, texts, asked)) for kind in ("dense", "sparse", "hybrid")]
    medians = {each.kind: each.cpu_ms for each in found}
    ratio = round(medians["hybrid"] / (medians["dense"] + medians["sparse"]), 2)
    save_measured(
        output,
        {
            "hybrid_to_sum": ratio,
            "documents": len(texts),
            "dim": DIM,
            "top_k": TOP_K,
            "kinds": [asdict(each) for each in found],
        },
    )


def measure(kind: Kind, texts: Sequence[str], queries: Sequence[str]) -> Latency:
    """Measure one kind of query on fresh databases."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(len(texts), DIM)).astype(np.float32)
    own_ms, ms, equal = [], [], True
    with closing(_filled(texts, vectors)) as own, closing(_filled(texts, vectors)) as fast:
        # A collection of Python's own garbage walks the objects of both databases: 260 ms, in whichever query it falls.
        gc.collect()
        gc.freeze()
        for query in queries:
            request = _request(kind, query, rng.normal(size=DIM).tolist())
            expected, own_time = _ask(lambda: own.query_batch_points(NAME, [request])[0].points)  # noqa: B023
            found, time_taken = _ask(lambda: Collection(fast, NAME).search("searching", [request])[0])  # noqa: B023
            own_ms.append(own_time)
            ms.append(time_taken)
            equal = equal and expected == found
        gc.unfreeze()
    own_median, median = statistics.median(own_ms), statistics.median(ms)
    return Latency(
        kind=kind,
        queries=len(queries),
        own_cpu_ms=round(own_median, 1),
        first_cpu_ms=round(ms[0], 1),
        second_cpu_ms=round(ms[1], 1),
        cpu_ms=round(median, 1),
        times_faster=round(own_median / median, 1),
        times_faster_at_first=round(own_ms[0] / ms[0], 1),
        equal=equal,
    )


def _filled(texts: Sequence[str], vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> QdrantClient:
    client = QdrantClient(":memory:")
    client.create_collection(
        NAME,
        vectors_config={"dense": models.VectorParams(size=DIM, distance=models.Distance.COSINE)},
        sparse_vectors_config={bm25.VECTOR_NAME: models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    average = bm25.average_length(texts)
    points = [
        models.PointStruct(
            id=number,
            vector={
                "dense": row.tolist(),
                bm25.VECTOR_NAME: sparse_vector(bm25.document_vector(text, average_length=average)),
            },
            payload={"text": text},
        )
        for number, (text, row) in enumerate(zip(texts, vectors, strict=True))
    ]
    for start in range(0, len(points), BATCH_POINTS):
        client.upsert(NAME, points[start : start + BATCH_POINTS])
    return client


def _request(kind: Kind, query: str, vector: list[float]) -> models.QueryRequest:
    sparse = models.Prefetch(query=sparse_vector(bm25.query_vector(query)), using=bm25.VECTOR_NAME)
    if kind == "hybrid":
        return fused_request(
            models.Prefetch(query=vector, using="dense"), sparse, fusion="linear", alpha=0.4, limit=TOP_K
        )
    query_vector, using = (vector, "dense") if kind == "dense" else (sparse.query, sparse.using)
    return models.QueryRequest(query=query_vector, using=using, limit=TOP_K, with_payload=True)


def _ask(search: Callable[[], Sequence[models.ScoredPoint]]) -> tuple[list[tuple[object, float]], float]:
    """Return the hits and the CPU time in milliseconds."""
    start = time.process_time()
    points = search()
    return [(point.id, point.score) for point in points], (time.process_time() - start) * 1e3


if __name__ == "__main__":
    main()
