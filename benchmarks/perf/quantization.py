"""What quantised vectors lose against exact search on a real server, by rescoring and oversampling."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal

import click
from qdrant_client import QdrantClient, models

from care_qdrant.ingestion.run import ingest
from care_qdrant.model import CareModel
from care_qdrant.store.collection import Collection
from care_qdrant.store.connection import open_client
from care_qdrant.store.create import Storage
from care_qdrant.store.quantization import OVERSAMPLING, recorded_rescoring
from care_qdrant.types import Document
from tests.tiny import medical_texts

from .measured import output_option, plain, save_measured, shown

TOP_K = 10
QUERY_CHARACTERS = 20
Kind = Literal["int8", "binary"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to search a quantised vector."""

    quantization: Kind
    oversampling: float | None
    """None searches the compressed vectors without rescoring."""
    overlap_at_10: float
    """With exact search by the original vectors."""
    ms_per_query: float
    is_chosen: bool
    """Whether ingestion recorded it for searches of this collection."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="QDRANT_URL", required=True, help="URL of a Qdrant server; its collections are kept.")
@click.option("--points", type=click.IntRange(100), default=10_000, show_default=True, help="Generated documents.")
@click.option("--queries", type=click.IntRange(1), default=200, show_default=True, help="Openings of documents.")
@output_option
def main(url: str, points: int, queries: int, output: Path) -> None:
    """Ingest generated texts with the built-in pair under each quantization, and search with each oversampling.

    \b
    Example:
      python -m benchmarks.perf.quantization --url http://localhost:6333 \\
        --output benchmarks/results/server-quantization.json
    """
    model, texts = CareModel.load(), medical_texts(points)
    asked = model.query_encoder.encode([text[:QUERY_CHARACTERS] for text in texts[:: max(1, points // queries)]])
    settings: list[Setting] = []
    with open_client(url=url) as client:
        version = client.info().version
        kinds: tuple[Kind, ...] = ("int8", "binary")
        for kind in kinds:
            with _collection(client, model, texts, kind) as collection:
                settings += map(shown, _measure(collection, model.name, asked.tolist(), kind))
    save_measured(
        output,
        {"server": version, "points": points, "dim": model.contract().dim, "settings": plain(settings)},
    )


@contextmanager
def _collection(client: QdrantClient, model: CareModel, texts: list[str], kind: Kind) -> Iterator[Collection]:
    name = f"care-perf-{uuid.uuid4().hex[:8]}"
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    try:
        ingest(documents, model, client, name, storage=Storage(quantization=kind))
        yield Collection(client, name)
    finally:
        client.delete_collection(name)


def _measure(collection: Collection, vector: str, queries: list[list[float]], kind: Kind) -> Iterator[Setting]:
    chosen = recorded_rescoring(collection.schema, vector)
    ignored = models.QuantizationSearchParams(ignore=True)
    exact, _ = _search(collection, vector, queries, models.SearchParams(exact=True, quantization=ignored))
    for oversampling in (None, *OVERSAMPLING):
        params = models.QuantizationSearchParams(rescore=oversampling is not None, oversampling=oversampling)
        found, seconds = _search(collection, vector, queries, models.SearchParams(quantization=params))
        overlap = mean(len(here & there) / len(here) for here, there in zip(exact, found, strict=True))
        is_chosen = chosen is not None and chosen.oversampling == oversampling
        yield Setting(kind, oversampling, round(overlap, 4), round(seconds * 1e3 / len(queries), 3), is_chosen)


def _search(
    collection: Collection, vector: str, queries: list[list[float]], params: models.SearchParams
) -> tuple[list[set[models.ExtendedPointId]], float]:
    requests = [
        models.QueryRequest(query=query, using=vector, limit=TOP_K, params=params, with_payload=False)
        for query in queries
    ]
    start = time.perf_counter()
    found = collection.search("searching", requests)
    return [{hit.id for hit in hits} for hits in found], time.perf_counter() - start


if __name__ == "__main__":
    main()
