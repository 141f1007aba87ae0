"""One ingestion as a program, to be measured or killed from outside."""

import json
import resource
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from qdrant_client import QdrantClient, models

from care_benchmarks.ingestion.fake import ReadyModel
from care_qdrant.ingestion.run import ingest
from care_qdrant.store.connection import open_client


def open_target(target: str) -> AbstractContextManager[QdrantClient]:
    """Open a URL or a folder."""
    return open_client(url=target) if target.startswith("http") else open_client(path=Path(target))


def log_acknowledged(client: QdrantClient, path: Path) -> None:
    """Let a client write down the ids of points once Qdrant has acknowledged them."""
    upsert = client.upsert
    log = path.open("a", encoding="utf-8")

    def logged(collection_name: str, points: Any, **options: Any) -> models.UpdateResult:
        result = upsert(collection_name, points, **options)
        log.write("".join(f"{point.id}\n" for point in points))
        log.flush()
        return result

    client.upsert = logged  # type: ignore[method-assign,assignment]


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True))
@click.argument("collection")
@click.argument("target")
@click.option("--dim", default=64)
@click.option("--log", type=click.Path(path_type=Path))
def main(corpus: Path, collection: str, target: str, dim: int, log: Path | None) -> None:
    """Ingest CORPUS into COLLECTION of TARGET with ready vectors; print the report and the peak memory as JSON."""
    with open_target(target) as client:
        if log is not None:
            log_acknowledged(client, log)
        print("ready", flush=True)
        report = ingest(corpus, ReadyModel(dim), client, collection)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mib = kilobytes / (1024 if sys.platform == "linux" else 1024**2)
    print(json.dumps({**asdict(report), "peak_memory_mib": round(peak_mib, 1)}), flush=True)


if __name__ == "__main__":
    main()
