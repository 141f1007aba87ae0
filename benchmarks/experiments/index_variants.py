"""Accuracy of cheaper indexes: HNSW, int8, float16 and fewer dimensions against exact search over float32.

The vectors are those that a run has stored in its embedded database. That database scans and ignores these options, so
the vectors are copied into Qdrant's own engine in this process (qdrant-edge).
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import numpy as np
import numpy.typing as npt
from care_benchmarks.lexical import scroll_points
from care_benchmarks.measures import Qrels, Run, per_query, ranked
from care_benchmarks.search import QdrantSearch
from care_benchmarks.statistics import Interval, mean_interval, randomisation_p_value
from care_benchmarks.systems import load_systems
from care_benchmarks.tasks import directory_tasks, load_task
from qdrant_client import QdrantClient

from benchmarks.perf.measured import output_option, plain, save_measured
from care_qdrant.errors import InputError
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from qdrant_edge import EdgeShard, SearchParams

Vector = npt.NDArray[np.float32]
"""Shape (dim,)."""

TOP_K = 100
_VECTOR = "dense"
_PAGE = 512
_INDEXING_THRESHOLD_KB = 1
"""Small enough that HNSW is built for a small corpus, which Qdrant's default would scan."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to store and search the same vectors."""

    name: str
    dim_share: float = 1.0
    """Fraction of the first dimensions that is kept (paper, equation 4: Matryoshka)."""
    stored: Literal["float32", "float16", "int8"] = "float32"
    exact: bool = False
    oversampling: float | None = None
    """Factor of int8 candidates that are scored again with float32; None ranks by int8 alone."""

    def bytes_per_vector(self, dim: int) -> float:
        """Return the size of the copy that a search reads first."""
        return int(dim * self.dim_share) * {"float32": 4, "float16": 2, "int8": 1}[self.stored]


EXACT = Variant("exact, float32", exact=True)
VARIANTS = (
    Variant("HNSW, float32"),
    Variant("HNSW, float16", stored="float16"),
    Variant("HNSW, int8", stored="int8"),
    Variant("HNSW, int8, 3× rescored", stored="int8", oversampling=3.0),
    Variant("exact, first half of the dimensions", dim_share=0.5, exact=True),
    Variant("exact, first quarter of the dimensions", dim_share=0.25, exact=True),
)


@dataclass(frozen=True, slots=True)
class Delta:
    """Effect of a cheaper index on one task."""

    variant: str
    task: str
    value: float
    difference: float
    """Difference from exact search over float32."""
    interval: Interval
    """Interval of the difference."""
    p_value: float
    overlap_at_10: float
    """Fraction of the exact first ten that it finds."""
    bytes_per_vector: float


@click.command()
@click.argument("task", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("result", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="First model of the run.")
@output_option
def main(task: Path, result: Path, model: str, output: Path) -> None:
    """Measure cheaper indexes on the retrieval task of the directory TASK, over the database of the saved RESULT.

    \b
    Example:
      care-bench run examples/sample --output results/sample
      python -m benchmarks.experiments.index_variants examples/sample results/sample --output variants.json
    """
    found = next((each for each in directory_tasks(task) if each.metadata.type == "Retrieval"), None)
    if found is None:
        raise InputError(f"{task}: has no retrieval task (corpus.jsonl, queries.jsonl, qrels.jsonl)")
    loaded, [system] = load_task(found), load_systems([model], [])
    with open_client(path=result / "qdrant") as client:
        collection = QdrantSearch(system, client).collection(loaded.name, loaded.revision)
        documents, stored = read_vectors(client, collection, system.model.name)
    queries = dict(zip(loaded.queries, system.model.encode_query(list(loaded.queries.values())), strict=True))
    deltas = measure_variants(loaded.name, loaded.measure, documents, stored, queries, loaded.qrels)
    save_measured(output, {"model": system.name, "fingerprint": system.fingerprint, "deltas": plain(deltas)})


def measure_variants(
    task: str,
    measure: str,
    documents: Sequence[str],
    vectors: Vectors,
    queries: Mapping[str, Vector],
    qrels: Qrels,
    variants: Sequence[Variant] = VARIANTS,
) -> list[Delta]:
    """Search the same vectors with every variant, and compare each with exact search."""
    reference = _run(EXACT, documents, vectors, queries)
    base = list(per_query(qrels, reference)[measure].values())
    deltas = []
    for variant in variants:
        run = _run(variant, documents, vectors, queries)
        scores = list(per_query(qrels, run)[measure].values())
        difference = np.subtract(scores, base)
        deltas.append(
            Delta(
                variant=variant.name,
                task=task,
                value=float(np.mean(scores)),
                difference=float(difference.mean()),
                interval=mean_interval(difference),
                p_value=randomisation_p_value(base, scores),
                overlap_at_10=float(np.mean([_overlap(reference[query], run[query]) for query in queries])),
                bytes_per_vector=variant.bytes_per_vector(vectors.shape[1]),
            )
        )
    return deltas


def read_vectors(client: QdrantClient, collection: str, vector_name: str) -> tuple[list[str], Vectors]:
    """Read all vectors of one name from Qdrant, with the ids of their documents."""
    points = list(scroll_points(client, collection, [vector_name]))
    rows = [vectors[vector_name] for _, vectors in points]
    return [document for document, _ in points], np.asarray(rows, dtype=np.float32)


def _run(variant: Variant, documents: Sequence[str], vectors: Vectors, queries: Mapping[str, Vector]) -> Run:
    from qdrant_edge import Query, QueryRequest

    dim = int(vectors.shape[1] * variant.dim_share)
    found = {}
    with tempfile.TemporaryDirectory() as folder, _shard(Path(folder), variant, dim) as shard:
        _fill(shard, vectors[:, :dim])
        params = _search_params(variant)
        for query, vector in queries.items():
            nearest = Query.Nearest(vector[:dim].tolist(), using=_VECTOR)
            points = shard.query(QueryRequest(limit=min(TOP_K, len(documents)), query=nearest, params=params))
            found[query] = {documents[int(str(point.id))]: point.score for point in points}
    return found


@contextmanager
def _shard(folder: Path, variant: Variant, dim: int) -> Iterator["EdgeShard"]:
    from qdrant_edge import (
        Distance,
        EdgeConfig,
        EdgeOptimizersConfig,
        EdgeShard,
        EdgeVectorParams,
        HnswIndexConfig,
        ScalarQuantizationConfig,
        ScalarType,
        VectorStorageDatatype,
    )

    datatype = VectorStorageDatatype.Float16 if variant.stored == "float16" else VectorStorageDatatype.Float32
    quantization = ScalarQuantizationConfig(type=ScalarType.Int8, quantile=0.99) if variant.stored == "int8" else None
    config = EdgeConfig(
        vectors={_VECTOR: EdgeVectorParams(size=dim, distance=Distance.Cosine, datatype=datatype)},
        hnsw_config=HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=_INDEXING_THRESHOLD_KB),
        quantization_config=quantization,
        optimizers=EdgeOptimizersConfig(indexing_threshold=_INDEXING_THRESHOLD_KB, default_segment_number=1),
    )
    shard = EdgeShard.create(str(folder), config)
    try:
        yield shard
    finally:
        shard.close()


def _fill(shard: "EdgeShard", vectors: Vectors) -> None:
    from qdrant_edge import Point, UpdateOperation

    for start in range(0, len(vectors), _PAGE):
        rows = enumerate(vectors[start : start + _PAGE].tolist(), start)
        points = [Point(number, {_VECTOR: row}) for number, row in rows]
        shard.update(UpdateOperation.upsert_points(points))
    shard.flush()
    shard.optimize()


def _search_params(variant: Variant) -> "SearchParams":
    from qdrant_edge import QuantizationSearchParams, SearchParams

    if variant.exact:
        return SearchParams(exact=True)
    if variant.stored != "int8":
        return SearchParams()
    rescore = variant.oversampling is not None
    quantization = QuantizationSearchParams(ignore=False, rescore=rescore, oversampling=variant.oversampling)
    return SearchParams(quantization=quantization)


def _overlap(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the fraction of the first ten of one that is among the first ten of the other."""
    first = set(ranked(one)[:10])
    return len(first & set(ranked(other)[:10])) / max(1, len(first))


if __name__ == "__main__":
    main()
