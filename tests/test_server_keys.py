"""A real server that asks for keys: one for all, one for reading, and tokens (JWT) for one collection."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from care_trainer.learn.learn import learn
from qdrant_client import QdrantClient

from care_qdrant import Document, IngestSettings, Retriever, attach_vector, detach_vector, ingest
from care_qdrant.errors import Rejected
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from tests.reliability.processes import BINARY, QdrantServer
from tests.tiny import HashModel

KEY, READ_KEY, NAME = "a-key-of-some-length-1", "a-key-of-some-length-2", "corpus"
DOCUMENTS = [Document(f"d{number}", f"第{number}段") for number in range(20)]
pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not BINARY, reason="QDRANT_BINARY names no qdrant server program"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantServer]:
    settings = {
        "QDRANT__SERVICE__API_KEY": KEY,
        "QDRANT__SERVICE__READ_ONLY_API_KEY": READ_KEY,
        "QDRANT__SERVICE__JWT_RBAC": "true",
    }
    with QdrantServer(str(BINARY), tmp_path_factory.mktemp("keys"), settings) as server:
        yield server


@pytest.fixture(params=[False, True], ids=["http", "grpc"])
def grpc(request: pytest.FixtureRequest, server: QdrantServer) -> Any:
    """Whether calls use gRPC; the collection is there with 20 documents."""
    with open_client(url=server.url, api_key=KEY, grpc=request.param) as client:
        client.delete_collection(NAME)
        assert ingest(DOCUMENTS, HashModel(), client, NAME).points == 20
    return request.param


def token(access: Any) -> str:
    """Return a JWT (RFC 7519) with these rights, signed with the key for all."""
    parts = [{"alg": "HS256", "typ": "JWT"}, {"access": access}]
    content = b".".join(_base64(json.dumps(part).encode()) for part in parts)
    return b".".join([content, _base64(hmac.new(KEY.encode(), content, hashlib.sha256).digest())]).decode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _searches(client: QdrantClient) -> bool:
    [hits] = Retriever(client, NAME, HashModel()).search([DOCUMENTS[7].text], top_k=1)  # type: ignore[arg-type]
    return hits[0].document_id == "d7"


@pytest.mark.parametrize(
    "key", [READ_KEY, token("r"), token([{"collection": NAME, "access": "r"}])], ids=["read-key", "read-token", "token"]
)
def test_a_key_for_reading_searches_and_writes_nothing(server: QdrantServer, grpc: bool, key: str) -> None:
    with open_client(url=server.url, api_key=key, grpc=grpc) as client:
        assert _searches(client)
        with pytest.raises(Rejected, match="Give a key that may write"):
            ingest([*DOCUMENTS, Document("new", "新的")], HashModel(), client, NAME)
        assert client.count(NAME, exact=True).count == 20


def test_a_key_for_reading_learns_nothing(server: QdrantServer, grpc: bool, tmp_path: Path) -> None:
    read: list[str] = []
    with (
        open_client(url=server.url, api_key=READ_KEY, grpc=grpc) as client,
        pytest.raises(Rejected, match="Give a key that may write"),
    ):
        learn(Collection(client, NAME), tmp_path / "learned", on_progress=lambda part, _done, _total: read.append(part))
    assert not read and not list(tmp_path.iterdir())


def test_a_token_for_one_collection_writes_there_and_nowhere_else(server: QdrantServer, grpc: bool) -> None:
    key = token([{"collection": NAME, "access": "rw"}])
    with open_client(url=server.url, api_key=key, grpc=grpc) as client:
        documents = [*DOCUMENTS[1:], Document("new", "新的")]
        report = ingest(documents, HashModel(), client, NAME, settings=IngestSettings(sync=True))
        assert (report.encoded, report.deleted, report.points) == (1, 1, 20)
        assert _searches(client)
        with pytest.raises(Rejected, match="Access to collection other is required"):
            ingest(DOCUMENTS, HashModel(), client, "other")


def test_a_token_for_one_collection_detaches_nothing_by_halves(server: QdrantServer, grpc: bool) -> None:
    """Such a token may remove the vector and the hashes, and not the records of it."""
    with open_client(url=server.url, api_key=KEY) as client:
        assert attach_vector(client, NAME, HashModel(name="other")).covered == 20
    with (
        open_client(url=server.url, api_key=token([{"collection": NAME, "access": "rw"}]), grpc=grpc) as client,
        pytest.raises(Rejected, match="Give a key that may write"),
    ):
        detach_vector(client, NAME)
    with open_client(url=server.url, api_key=KEY) as client:
        report = attach_vector(client, NAME, HashModel(name="other"))
        assert (report.encoded, report.unchanged) == (0, 20)


def test_chunks_left_behind_are_found_without_a_note(server: QdrantServer, grpc: bool) -> None:
    key, text = token([{"collection": NAME, "access": "rw"}]), "长句子。" * 60
    with open_client(url=server.url, api_key=key, grpc=grpc) as client:
        long = ingest([Document("long", text)], HashModel(max_tokens=64), client, NAME)
        assert long.chunks > 2
        # As a killed run leaves it: later chunks without those before them.
        first = client.scroll(NAME, limit=100)[0]
        left = [
            each.id for each in first if (each.payload or {})["doc_id"] == "long" and not each.payload["_care"]["chunk"]
        ]  # type: ignore[index]
        client.delete(NAME, left, wait=True)
        report = ingest([Document("long", "短句子。")], HashModel(max_tokens=64), client, NAME)
        assert report.deleted == long.chunks - 1
        assert client.count(NAME, exact=True).count == 21


def test_an_unknown_key_is_refused_when_the_server_is_opened(server: QdrantServer) -> None:
    for grpc in (False, True):
        with (
            pytest.raises(Rejected, match="does not accept this API key"),
            open_client(url=server.url, api_key="x", grpc=grpc),
        ):
            pass
