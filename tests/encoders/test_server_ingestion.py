"""A server that fails in the middle of an ingestion: nothing wrong is stored, and nothing is lost."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient

from care_qdrant.encoders.engine import Engine
from care_qdrant.errors import ModelError
from care_qdrant.index.ingest import ingest
from care_qdrant.index.settings import IngestReport, IngestSettings
from care_qdrant.model.pair import CareModel
from care_qdrant.progress import Progress
from care_qdrant.types import Document
from tests.encoders.embeddings_server import DROPPED, UNUSABLE, EmbeddingServer, Fault
from tests.tiny import medical_texts

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("quick")]
DOCUMENTS = [Document(str(number), text) for number, text in enumerate(medical_texts(600))]

Events = dict[int, Callable[[], None]]


def run(server: EmbeddingServer, folder: Path, client: QdrantClient, events: Events) -> IngestReport:
    """Ingest, and let something happen each time that a number of points is stored."""
    engine = Engine("server", endpoints=(server.url,), sent="text", patience_seconds=60)
    waiting = sorted(events)

    def happen(progress: Progress) -> None:
        while waiting and progress.stored >= waiting[0]:
            events[waiting.pop(0)]()

    model = CareModel.load(folder, engine=engine)
    settings = IngestSettings(batch_tokens=400)
    return ingest(DOCUMENTS, model, client, "corpus", settings=settings, on_progress=happen)


def require_right_vectors(client: QdrantClient, folder: Path, least: int) -> None:
    """Compare every stored vector with the one that the pair itself makes."""
    records, _ = client.scroll("corpus", limit=10_000, with_vectors=True)
    model = CareModel.load(folder)
    expected = model.encode_document([str((record.payload or {})["text"]) for record in records])
    stored = np.asarray([record.vector[model.name] for record in records], dtype=np.float32)  # type: ignore[index,call-overload]
    np.testing.assert_allclose(stored, expected, atol=1e-5)
    assert len(records) >= least


def test_a_server_that_dies_slows_down_and_answers_nonsense_loses_nothing(
    server: EmbeddingServer, pair_folder: Path
) -> None:
    def answering(kind: str) -> Fault:
        return lambda inputs: (200, {"data": UNUSABLE[kind][0](server.embed(inputs))})  # type: ignore[arg-type]

    kinds: list[Fault] = [lambda _: (DROPPED, None), lambda _: (429, {}), *map(answering, UNUSABLE)]
    kinds.append(lambda _: time.sleep(0.3))  # type: ignore[arg-type,return-value,func-returns-value]
    events: Events = {
        50 * number: lambda fault=fault: server.faults.extend([fault] * 2)  # type: ignore[misc]
        for number, fault in enumerate(kinds, start=1)
    }
    client = QdrantClient(":memory:")
    report = run(server, pair_folder, client, events)
    assert report.points == report.chunks >= len(DOCUMENTS)
    require_right_vectors(client, pair_folder, report.chunks)
    assert report.engine["engine"] == "server"
    (endpoint,) = report.engine["endpoints"]
    assert endpoint["failed"] >= 2
    assert endpoint["unusable"] >= 5
    assert report.engine["lowest_cosine"] > 0.9999


def test_a_server_that_is_restarted_with_other_weights_writes_nothing_and_the_next_run_goes_on(
    server: EmbeddingServer, pair_folder: Path
) -> None:
    def change() -> None:
        server.change = lambda vectors: np.roll(vectors, 1)

    client = QdrantClient(":memory:")
    with pytest.raises(ModelError, match="None of its vectors was written"):
        run(server, pair_folder, client, {200: change})
    require_right_vectors(client, pair_folder, 200)
    with pytest.raises(ModelError, match="serves other weights"):
        run(server, pair_folder, client, {})
    server.change = lambda vectors: vectors
    report = run(server, pair_folder, client, {})
    assert report.unchanged >= 200
    assert report.points == report.chunks
    require_right_vectors(client, pair_folder, report.chunks)
