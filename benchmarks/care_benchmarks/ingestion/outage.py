"""A server that is gone in the middle of an ingestion, and comes back: with the default patience."""

import threading
from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.ingestion.fake import ReadyModel, write_corpus
from care_qdrant.errors import InputError
from care_qdrant.ingestion.report import Progress
from care_qdrant.ingestion.run import ingest
from care_qdrant.store.connection import open_client


@dataclass(frozen=True, slots=True)
class Outage:
    """One ingestion that went on when the server was back."""

    gone_seconds: float
    seconds: float
    chunks: int
    points: int
    """In the collection at the end, counted exactly."""
    stored_when_gone: int


def measure_outage(scratch: Path, documents: int, gone_seconds: float, dim: int) -> Outage:
    """Ingest into the stand-in server, which refuses connections for a while from half of the corpus on.

    Raises:
        InputError: the process does not run in a checkout of the repository, where the stand-in is.
    """
    try:
        from tests.standin import StandIn
    except ImportError as error:
        raise InputError("the stand-in server is not here; run this in the root of a care-qdrant checkout") from error

    corpus = write_corpus(scratch / "outage.jsonl", documents)
    stored_when_gone: list[int] = []
    with StandIn() as server, open_client(url=server.url) as client:

        def leave_halfway(progress: Progress) -> None:
            if not stored_when_gone and progress.encoded > documents / 2:
                stored_when_gone.append(client.count("corpus").count)
                server.go_away()
                threading.Timer(gone_seconds, server.come_back).start()

        report = ingest(corpus, ReadyModel(dim), client, "corpus", on_progress=leave_halfway)
    return Outage(gone_seconds, report.seconds, report.chunks, report.points, stored_when_gone[0])
