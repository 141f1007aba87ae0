"""What cheaper indexes cost: HNSW, int8, float16 and fewer dimensions against exact search over float32.

The embedded database of qdrant-client scans and ignores all of these options, so the vectors are copied into Qdrant's
own engine in this process (qdrant-edge). One document, one vector; queries are encoded once.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient

from care_benchmarks.audit import ranked
from care_benchmarks.measures import Run, per_query
from care_benchmarks.results import Delta
from care_benchmarks.statistics import mean_interval, randomisation_p_value
from care_benchmarks.taskfiles import Qrels
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from qdrant_edge import EdgeShard, SearchParams

Vector = npt.NDArray[np.float32]
"""Shape (dim,)."""

TOP_K = 100
_VECTOR = "dense"
_PAGE = 512
_INDEXING_THRESHOLD_KB = 1
"""So that HNSW is built for a small corpus, too; Qdrant's default would scan it."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to keep and search the same vectors."""

    name: str
    dim_share: float = 1.0
    """Of the first dimensions that are kept (paper, equation 4: Matryoshka)."""
    stored: Literal["float32", "float16", "int8"] = "float32"
    exact: bool = False
    oversampling: float | None = None
    """How many times as many int8 candidates are scored again with float32; None trusts int8."""

    def bytes_per_vector(self, dim: int) -> float:
        """Of the copy that a search reads first."""
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


def measure_variants(
    task: str,
    measure: str,
    documents: Sequence[str],
    vectors: Vectors,
    queries: Mapping[str, Vector],
    qrels: Qrels,
    variants: Sequence[Variant] = VARIANTS,
) -> list[Delta]:
    """Search the same vectors in every way, and compare each with exact search.

    Args:
        task: Its name, for the result.
        measure: The main one of the task.
        documents: Ids, in the order of ``vectors``.
        vectors: (n, dim) float32 unit rows.
        queries: Vector by query id.
        qrels: Judgements.
        variants: What to try.
    """
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
    """Read all vectors of one name back from Qdrant, with the ids of their documents."""
    points = list(scroll_points(client, collection, [vector_name]))
    rows = [vectors[vector_name] for _, vectors in points]
    return [document for document, _ in points], np.asarray(rows, dtype=np.float32)


def scroll_points(
    client: QdrantClient, collection: str, vector_names: list[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give the document id and the named vectors of every point."""
    offset = None
    while True:
        points, offset = client.scroll(
            collection, limit=_PAGE, offset=offset, with_payload=["doc_id"], with_vectors=vector_names
        )
        for point in points:
            vectors: Any = point.vector
            yield str((point.payload or {})["doc_id"]), vectors
        if offset is None:
            return


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
    """Give the share of the first ten of one that are among the first ten of the other."""
    first = set(ranked(one)[:10])
    return len(first & set(ranked(other)[:10])) / max(1, len(first))
