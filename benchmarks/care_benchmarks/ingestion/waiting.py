"""How long an encoder of a given speed stands still while the rest of the ingestion reads and writes."""

import time
from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.ingestion.fake import ReadyModel, write_corpus
from care_benchmarks.ingestion.processes import standin_server
from care_qdrant.ingestion.run import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.store.connection import open_client


@dataclass(frozen=True, slots=True)
class Waiting:
    """One ingestion with an encoder that sleeps instead of working, as the CPU does while a GPU works."""

    target: str
    encoder_documents_per_second: float
    documents: int
    documents_per_second: float
    encoder_idle_fraction: float
    """Of the time from the first to the end of the last batch; on a crowded machine this is mostly the crowd."""
    core_share: float
    """CPU time of the whole process over the time that the encoder slept: what one encoder needs of one core."""


def measure_waiting(scratch: Path, target: str, documents: int, documents_per_second: float, dim: int) -> Waiting:
    """Ingest into the embedded database or the stand-in server.

    Args:
        scratch: An empty folder.
        target: ``embedded`` or ``server``.
        documents: How many, each one point.
        documents_per_second: Of the encoder; a 4B model on an H200 does about 720 of 150 tokens.
        dim: Of the vectors.
    """
    corpus = write_corpus(scratch / f"waiting-{target}.jsonl", documents, sentences=6)
    model = ReadyModel(dim, max_tokens=512, texts_per_second=documents_per_second)
    settings = IngestSettings(batch_tokens=8_192)
    start = time.process_time()
    if target == "server":
        with standin_server("counting") as url, open_client(url=url) as client:
            report = ingest(corpus, model, client, "corpus", settings=settings)
    else:
        with open_client(path=scratch / "waiting") as client:
            report = ingest(corpus, model, client, "corpus", settings=settings)
    core_share = (time.process_time() - start) * documents_per_second / documents
    return Waiting(
        target=target,
        encoder_documents_per_second=documents_per_second,
        documents=documents,
        documents_per_second=report.documents_per_second,
        encoder_idle_fraction=report.encoder_idle_fraction,
        core_share=round(core_share, 3),
    )
