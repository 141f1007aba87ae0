"""Embedded ingestion of ready vectors against stock ``QdrantClient(path=…).upload_points``, in one run, in turns."""

import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from qdrant_client import QdrantClient, models

from care_benchmarks.ingestion.fake import ReadyModel, write_corpus
from care_qdrant.ingestion.run import ingest
from care_qdrant.store.connection import open_client
from care_qdrant.types import point_id


@dataclass(frozen=True, slots=True)
class Throughput:
    """Points a second into an embedded collection."""

    points: int
    dim: int
    stock_points_per_second: list[float]
    care_points_per_second: list[float]
    """Reading, hashing and the exact count included, which the stock client does not do."""
    ratio: float
    """Of the medians."""


def measure_throughput(scratch: Path, points: int, dim: int, repeats: int) -> Throughput:
    """Write the same documents both ways into a new folder each time.

    Args:
        scratch: An empty folder; the disk under it decides how long the stock client's commits take.
        points: Documents, each one point.
        dim: Of the vectors.
        repeats: How often each way is measured.
    """
    corpus = write_corpus(scratch / "corpus.jsonl", points, sentences=2)
    stock, care = [], []
    for number in range(repeats):
        stock.append(points / _stock_seconds(corpus, scratch / f"stock-{number}", dim))
        care.append(points / _care_seconds(corpus, scratch / f"care-{number}", dim))
    return Throughput(points, dim, _rounded(stock), _rounded(care), round(median(care) / median(stock), 2))


def _stock_seconds(corpus: Path, folder: Path, dim: int) -> float:
    encoder = ReadyModel(dim).document_encoder
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    vectors = encoder.encode([row["text"] for row in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = QdrantClient(path=str(folder))
        params = models.VectorParams(size=dim, distance=models.Distance.COSINE)
        client.create_collection("corpus", vectors_config={"ready": params})
        start = time.perf_counter()
        client.upload_points(
            "corpus",
            (
                models.PointStruct(id=point_id(row["id"]), vector={"ready": vector.tolist()}, payload=row)
                for row, vector in zip(rows, vectors, strict=True)
            ),
            wait=True,
        )
        seconds = time.perf_counter() - start
        client.close()
    return seconds


def _care_seconds(corpus: Path, folder: Path, dim: int) -> float:
    with open_client(path=folder) as client:
        return ingest(corpus, ReadyModel(dim, max_tokens=512), client, "corpus").seconds


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 1) for value in values]
