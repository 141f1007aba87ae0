"""The forecast of `care bulk plan --dry-run` for 10 million to 1 billion documents (docs/evidence/bulk.md)."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from care_qdrant.bulk.forecast import SAMPLE_DOCUMENTS, ForecastSettings, forecast
from care_qdrant.bulk.job import Manifest
from care_qdrant.bulk.units import corpus_documents
from care_qdrant.ingestion.reservoir import Reservoir
from care_qdrant.types import Document
from tests.reliability.ready_model import ReadyModel, write_corpus

from .measured import output_option

SIZES = (10_000_000, 100_000_000, 1_000_000_000)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dim", type=click.IntRange(1), default=1_024, show_default=True, help="Length of the vectors.")
@click.option(
    "--tokens-per-second",
    type=click.FloatRange(0, min_open=True),
    default=20_000.0,
    show_default=True,
    help="Of a worker; an assumption, no measurement.",
)
@click.option("--workers", type=click.IntRange(1), default=64, show_default=True, help="Their number.")
@output_option
def bulk_forecast(dim: int, tokens_per_second: float, workers: int, output: Path) -> None:
    """Work out three sizes of a generated corpus of 24 to 260 tokens a document.

    \b
    Example:
      python -m benchmarks.perf.bulk_forecast --output benchmarks/results/bulk-forecast.json
    """
    model = ReadyModel(dim, max_tokens=512)
    job = Manifest("ready", model.name, model.contract().fingerprint, dim, "Cosine", model.name)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "corpus.jsonl", 20_000, sentences=12)
        sample = Reservoir[Document](SAMPLE_DOCUMENTS, seed=0)
        sample.draw(corpus_documents([str(corpus)], job))
    found = []
    for size in SIZES:
        settings = ForecastSettings(size, tokens_per_second, workers)
        found.append(
            asdict(
                forecast(
                    sample.seen, sample.drawn, job, model.document_tokenizer, lambda: model.document_encoder, settings
                )
            )
        )
    output.write_text(json.dumps({"assumed_tokens_per_second": tokens_per_second, "sizes": found}, indent=1) + "\n")


if __name__ == "__main__":
    bulk_forecast()
