"""Program that ingests a corpus into a server and prints the report and its peak memory as JSON.

Arguments: corpus, URL, length of the vectors.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from care_benchmarks.cold_start import peak_memory_mib

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.connection import open_client
from tests.reliability.ready_model import ReadyModel

if __name__ == "__main__":
    corpus, url, dim = sys.argv[1:]
    with open_client(url=url) as client:
        report = ingest(Path(corpus), ReadyModel(int(dim)), client, "corpus")
    print(json.dumps({**asdict(report), "peak_memory_mib": round(peak_memory_mib(), 1)}))
