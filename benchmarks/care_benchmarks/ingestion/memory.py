"""Peak memory of an ingestion into a server, for a small and a large corpus."""

import json
from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.ingestion.fake import write_corpus
from care_benchmarks.ingestion.processes import standin_server, start_worker


@dataclass(frozen=True, slots=True)
class Memory:
    """One ingestion in a process of its own."""

    rows: int
    points: int
    peak_memory_mib: float
    """Resident, of the whole process."""
    documents_per_second: float


def measure_memory(scratch: Path, rows: int, dim: int) -> Memory:
    """Ingest short rows into the stand-in server, which is another process."""
    corpus = write_corpus(scratch / f"rows-{rows}.jsonl", rows, sentences=1)
    with standin_server("counting") as url, start_worker(corpus, "corpus", url, dim=dim) as process:
        output = process.communicate()[0]
    report = json.loads(output.splitlines()[-1])
    return Memory(rows, report["points"], report["peak_memory_mib"], report["documents_per_second"])
