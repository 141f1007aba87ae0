"""A snapshot of a collection, recovered on its own server after a loss, and on another server."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from care_qdrant import Document, IngestSettings, Retriever, ingest
from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifySettings
from tests.reliability.processes import BINARY, QdrantServer
from tests.reliability.sample_collection import distance, read_contents
from tests.tiny import HashModel, medical_texts

NAME = "corpus"
DOCUMENTS = [Document(f"d{number}", text) for number, text in enumerate(medical_texts(300))]
FIRST, SECOND = HashModel(name="first", max_tokens=512), HashModel(name="second", salt="other", max_tokens=512)

LENIENT = VerifySettings(least_known=0.0)
"""A hash of characters is no encoder that finds a text by its opening."""


@pytest.mark.server
@pytest.mark.parametrize("is_lost", [True, False], ids=["own server", "another server"])
def test_a_recovered_collection_is_what_it_was(tmp_path: Path, is_lost: bool) -> None:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    settings = IngestSettings(sparse=True)
    with ExitStack() as stack:
        servers = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            servers.append(stack.enter_context(QdrantServer(BINARY, tmp_path / name)))
        clients = [stack.enter_context(open_client(url=server.url)) for server in servers]
        ingest(DOCUMENTS, FIRST, clients[0], NAME, settings=settings)
        attach_vector(clients[0], NAME, SECOND)
        before = read_contents(clients[0], NAME)
        opened = Retriever(clients[0], NAME, SECOND)  # type: ignore[arg-type]
        assert opened.search([DOCUMENTS[7].text], top_k=1)[0][0].document_id == "d7"
        snapshot = clients[0].create_snapshot(NAME)
        assert snapshot is not None
        file = servers[0].folder / "snapshots" / NAME / snapshot.name
        if not is_lost:  # a server reads no other folder
            file = Path(shutil.copy(file, servers[1].folder / "snapshots"))

        client = clients[0] if is_lost else clients[1]
        if is_lost:
            ingest(DOCUMENTS[:3], FIRST, client, NAME, settings=IngestSettings(sync=True, max_delete_fraction=1.0))
        client.recover_snapshot(NAME, location=f"file://{file}", wait=True)

        assert distance(read_contents(client, NAME), before) == 0
        for model in (FIRST, SECOND):
            assert verify_collection(client, NAME, model, settings=LENIENT).problems == []
        assert verify_collection(client, NAME, None, settings=LENIENT).problems == []
        again = ingest(DOCUMENTS, FIRST, client, NAME, settings=settings)
        assert (again.encoded, again.unchanged) == (0, 300)
        assert attach_vector(client, NAME, SECOND).encoded == 0
        retriever = opened if is_lost else Retriever(client, NAME, SECOND)  # type: ignore[arg-type]
        assert retriever.search([DOCUMENTS[7].text], top_k=1)[0][0].document_id == "d7"
