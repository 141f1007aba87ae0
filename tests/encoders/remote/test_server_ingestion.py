"""A real server that fails in the middle of an ingestion: nothing wrong is stored, and nothing is lost."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from qdrant_client import QdrantClient

from care_qdrant.encoders.engine import Engine
from care_qdrant.encoders.remote import server as server_module
from care_qdrant.errors import ModelError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestReport, IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.progress import Progress
from care_qdrant.types import Document
from tests.tiny import medical_texts

pytestmark = pytest.mark.timeout(400)
DOCUMENTS = [Document(str(number), text) for number, text in enumerate(medical_texts(3_000))]


class Server:
    """The process, on one port through all restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self, *options: str) -> None:
        """Start it, and wait until it listens."""
        command = [
            sys.executable,
            "-m",
            "tests.encoders.remote.embeddings_server",
            str(self.port),
            str(self.folder),
            *options,
        ]
        self._process = subprocess.Popen(command)
        for _ in range(1_200):
            assert self._process.poll() is None
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def spoil(self, kind: str, count: int = 2) -> None:
        """Let the next answers be wrong."""
        httpx.post(f"{self.url}/fault", json={"kind": kind, "count": count}, timeout=60).raise_for_status()


@pytest.fixture
def server(pair_folder: Path) -> Iterator[Server]:
    server = Server(pair_folder)
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait no longer than a test needs."""
    monkeypatch.setattr(server_module, "FIRST_DELAY_SECONDS", 0.01)


def run(server: Server, client: QdrantClient, events: dict[int, Callable[[], None]]) -> IngestReport:
    """Ingest, and let something happen each time that a number of points is stored."""
    engine = Engine("server", endpoints=(f"{server.url}/v1",), sent="text", patience_seconds=60)
    waiting = sorted(events)

    def happen(progress: Progress) -> None:
        if waiting and progress.stored >= waiting[0]:  # one at a time: a request is tried three times
            events[waiting.pop(0)]()

    settings = IngestSettings(batch_tokens=1_000)
    model = CareModel.load(server.folder, engine=engine)
    return ingest(DOCUMENTS, model, client, "corpus", settings=settings, on_progress=happen)


def require_right_vectors(server: Server, client: QdrantClient, least: int) -> None:
    """Compare every stored vector with the one that the pair itself makes."""
    records, _ = client.scroll("corpus", limit=10_000, with_vectors=True)
    model = CareModel.load(server.folder)
    expected = model.encode_document([str((record.payload or {})["text"]) for record in records])
    stored = np.asarray([record.vector[model.name] for record in records], dtype=np.float32)  # type: ignore[index,call-overload]
    np.testing.assert_allclose(stored, expected, atol=1e-5)
    assert len(records) >= least


def test_a_server_that_dies_slows_down_and_answers_nonsense_loses_nothing(server: Server) -> None:
    def die() -> None:
        server.kill()
        server.start()

    events: dict[int, Callable[[], None]] = {200: die}
    for number, kind in enumerate(("429", "half", "nan", "zero", "width", "slow")):
        events[500 + 300 * number] = lambda kind=kind: server.spoil(kind, 1)  # type: ignore[misc]
    client = QdrantClient(":memory:")
    report = run(server, client, events)
    assert report.points == len(DOCUMENTS)
    require_right_vectors(server, client, len(DOCUMENTS))
    assert report.engine["engine"] == "server"
    (endpoint,) = report.engine["endpoints"]
    assert endpoint["failed"] >= 1, "half of an answer; whether one was on its way at the kill is chance"
    assert endpoint["unusable"] >= 4
    assert report.engine["lowest_cosine"] > 0.9999


def test_a_server_that_is_restarted_with_other_weights_writes_nothing_and_the_next_run_goes_on(server: Server) -> None:
    def change() -> None:
        server.kill()
        server.start("--other")

    client = QdrantClient(":memory:")
    with pytest.raises(ModelError, match="None of its vectors was written"):
        run(server, client, {1_000: change})
    require_right_vectors(server, client, 1_000)
    with pytest.raises(ModelError, match="serves other weights"):
        run(server, client, {})
    server.kill()
    server.start()
    report = run(server, client, {})
    assert report.unchanged >= 1_000
    assert report.points == len(DOCUMENTS)
    require_right_vectors(server, client, len(DOCUMENTS))
