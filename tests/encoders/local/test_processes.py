"""Several devices: a process each, the vectors of one, and nothing lost when a process dies."""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from qdrant_client import QdrantClient

from care_qdrant.encoders.local.processes import ProcessEncoder
from care_qdrant.errors import EncodingError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.progress import Progress
from care_qdrant.types import Document
from tests import tiny

pytestmark = pytest.mark.timeout(300)
DOCUMENTS = [Document(str(number), text) for number, text in enumerate(tiny.medical_texts(600))]
TEXTS = [document.text for document in DOCUMENTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.document_tower(tmp_path_factory.mktemp("devices") / "qwen3")


@contextmanager
def on(folder: Path, device: str) -> Iterator[CareModel]:
    """Open a model on several devices, and end its processes."""
    model = CareModel.load(folder, device=device)
    yield model
    encoder = model.document_encoder
    assert isinstance(encoder, ProcessEncoder)
    encoder.close()


def workers(besides: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    spawned = (each for each in psutil.Process().children() if "spawn_main" in " ".join(each.cmdline()))
    return [each for each in spawned if each not in besides]


def stored(client: QdrantClient) -> dict[str, list[float]]:
    points, _ = client.scroll("c", limit=len(DOCUMENTS), with_vectors=True)
    found: dict[str, list[float]] = {}
    for point in points:
        assert point.payload is not None
        assert isinstance(point.vector, dict)
        (found[point.payload["text"]],) = point.vector.values()
    return found


def run(model: CareModel, client: QdrantClient, kill_at: int | None = None) -> int:
    """Ingest; kill a process of the encoder once a number of points is stored."""
    killed, earlier = list[int](), workers()

    def happen(progress: Progress) -> None:
        if kill_at is not None and progress.stored >= kill_at and not killed:
            killed.append(workers(earlier)[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    settings = IngestSettings(batch_tokens=400)
    return ingest(DOCUMENTS, model, client, "c", settings=settings, on_progress=happen).points


def test_two_processes_give_the_vectors_of_one_in_order(folder: Path) -> None:
    expected, earlier = CareModel.load(folder, device="cpu").encode_document(TEXTS), workers()
    client = QdrantClient(":memory:")
    with on(folder, "cpu,cpu") as model:
        np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-5, rtol=0)
        assert len(workers(earlier)) == 2
        assert run(model, client) == len(DOCUMENTS)
        assert model.document_encoder.report()["device"] == "cpu,cpu"  # type: ignore[attr-defined]
        # Queries are encoded here, by the same weights.
        np.testing.assert_allclose(model.encode_query(TEXTS[:5]), expected[:5], atol=1e-5, rtol=0)
    found = stored(client)
    np.testing.assert_allclose([found[text] for text in TEXTS], expected, atol=1e-5, rtol=0)
    assert not workers(earlier), "they end with the encoder"


@pytest.mark.slow
def test_a_process_that_is_killed_is_named_and_the_same_run_goes_on(folder: Path) -> None:
    client = QdrantClient(":memory:")
    with on(folder, "cpu,cpu") as model, pytest.raises(EncodingError, match=r"cpu,? ?cpu died.*same command again"):
        run(model, client, kill_at=100)
    assert 100 <= client.count("c").count < len(DOCUMENTS)
    one = CareModel.load(folder, device="cpu")
    assert run(one, client) == len(DOCUMENTS)
    expected = one.encode_document(TEXTS)
    found = stored(client)
    np.testing.assert_allclose([found[text] for text in TEXTS], expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_device_that_is_not_there_is_named(folder: Path) -> None:
    earlier = workers()
    with pytest.raises(EncodingError, match=r"^cuda:7: the encoder did not start"):
        _ = CareModel.load(folder, device="cpu,cuda:7").document_encoder
    assert not workers(earlier)
