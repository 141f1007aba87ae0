"""Memory of the harness while it reads, checks and indexes a retrieval task of any size into a server."""

import json
from dataclasses import dataclass
from pathlib import Path

from qdrant_client import QdrantClient

from care_benchmarks.cold_start import peak_memory_mib
from care_benchmarks.contestants import Contestant
from care_benchmarks.ingestion.fake import ReadyModel, write_corpus
from care_benchmarks.ingestion.processes import standin_server
from care_benchmarks.search import QdrantSearch
from care_benchmarks.tasks import directory_tasks
from care_qdrant.model import CareModel

QUERIES = 100


@dataclass(frozen=True, slots=True)
class Scale:
    """One task, in a process of its own."""

    documents: int
    after_imports_mib: float
    after_reading_mib: float
    """The task read and checked, its corpus on the disk."""
    after_indexing_mib: float
    """Every document encoded, sent to the server and acknowledged. Peaks, all three."""
    documents_per_second: float


def measure_scale(scratch: Path, documents: int, dim: int) -> Scale:
    """Index a made-up task into the stand-in server, which remembers the ids of points and cannot search."""
    directory = _write_task(scratch / f"task-{documents}", documents)
    after_imports = peak_memory_mib()
    [task] = directory_tasks(directory)
    task.load_data()
    after_reading = peak_memory_mib()
    ready = ReadyModel(dim)
    model = CareModel(
        name=ready.name,
        dim=dim,
        fingerprint=ready.contract().fingerprint,
        temperature=1.0,
        load_query_encoder=lambda: ready.document_encoder,
        load_document_encoder=lambda: ready.document_encoder,
    )
    contestant = Contestant(ready.name, "ready vectors, looked up", model, "", "auto", None, "dense", 0, 0)
    with standin_server(counting=True) as url:
        client = QdrantClient(url=url, check_compatibility=False, timeout=60)
        search = QdrantSearch(contestant, client)
        dataset = task.dataset["default"]["test"]  # type: ignore[index]
        search.index(dataset["corpus"], task_metadata=task.metadata)
        client.close()
    found = search.indexed[task.metadata.name]
    return Scale(documents, after_imports, after_reading, peak_memory_mib(), found.encoded / found.seconds)


def _write_task(directory: Path, documents: int) -> Path:
    directory.mkdir(parents=True)
    write_corpus(directory / "corpus.jsonl", documents)
    with (directory / "queries.jsonl").open("w") as queries, (directory / "qrels.jsonl").open("w") as qrels:
        for number in range(QUERIES):
            queries.write(json.dumps({"id": f"q{number}", "text": f"question {number}"}) + "\n")
            document = f"doc-{number * (documents // QUERIES)}"
            qrels.write(json.dumps({"query_id": f"q{number}", "document_id": document, "score": 1}) + "\n")
    return directory
