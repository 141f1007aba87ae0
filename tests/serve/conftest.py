"""A service in this process, over encoders that need no model, and requests to it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from qdrant_client import QdrantClient

from care_qdrant.encoders import Encoder
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.serve.app import Service
from care_qdrant.serve.connections import bounded_protocol
from care_qdrant.serve.settings import Limits, ServeSettings
from care_qdrant.types import Document
from tests.tiny import TEXTS, GivenEncoder, HashEncoder

MakeService = Callable[..., Service]
Ask = Callable[..., Any]
KEY = "a-key-of-some-length-1"
OTHER_KEY = "another-key-of-length-2"


def pair(
    name: str = "pair",
    salt: str = "",
    query: Encoder | None = None,
    document: Encoder | None = None,
    terms: Path | None = None,
) -> CareModel:
    """Return a pair whose two sides give different vectors for one text."""
    fingerprint = (name + salt).encode().hex().ljust(64, "0")[:64]
    return CareModel(
        name=name,
        dim=32,
        fingerprint=fingerprint,
        temperature=0.02,
        query=GivenEncoder(query or HashEncoder(salt=f"{name}{salt}-query")),
        document=GivenEncoder(document or HashEncoder(salt=f"{name}{salt}-document")),
        term_weights=terms,
    )


@pytest.fixture
def services() -> Iterator[ExitStack]:
    """A stack that closes the services of a test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def client(client: QdrantClient, services: ExitStack) -> Iterator[QdrantClient]:
    """An empty Qdrant that is closed after the services that search it: they may still be measuring good matches."""
    yield client
    services.close()


@pytest.fixture
def make_service(services: ExitStack) -> MakeService:
    """Build services; they are closed at the end."""

    def make(
        *models: CareModel, limits: dict[str, Any] | None = None, over: QdrantClient | None = None, **settings: Any
    ) -> Service:
        pairs = models or (pair(),)
        if over is not None:
            settings["open_qdrant"] = lambda: nullcontext(over)
        given = ServeSettings(load_models=lambda: list(pairs), limits=replace(Limits(), **limits or {}), **settings)
        service = Service(given, pairs)
        services.callback(service.close)
        return service

    return make


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Service], httpx.AsyncClient]]:
    """Open HTTP clients of services in this process."""
    clients: list[httpx.AsyncClient] = []

    def open_client(service: Service) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=service.app, raise_app_exceptions=True)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30))
        return clients[-1]

    yield open_client
    for client in clients:
        await client.aclose()


@pytest.fixture
def listen() -> Iterator[Callable[[Service], str]]:
    """Serve on a free port of loopback, for clients that need a socket; returns the address."""
    with ExitStack() as stack:
        yield lambda service: stack.enter_context(_listening(service))


@pytest.fixture
def serve_with_key(make_service: MakeService, listen: Callable[[Service], str], tmp_path: Path) -> Ask:
    """Serve both sides of a pair to those who have `KEY`; returns the address below which OpenAI's paths are."""

    async def serve(model: CareModel) -> str:
        (tmp_path / "keys").write_text(f"{KEY}\n")
        service = make_service(model, documents=True, keys_file=tmp_path / "keys")
        await service.load()
        return f"{listen(service)}/v1"

    return serve


@contextmanager
def _listening(service: Service) -> Iterator[str]:
    protocol = bounded_protocol(Limits().connections)
    config = uvicorn.Config(
        service.app, port=0, lifespan="off", log_config=None, access_log=False, http=protocol, ws="none"
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        async with service.running():
            await server.serve()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def asked(*texts: str, model: str = "pair", side: str = "search", **fields: Any) -> dict[str, Any]:
    """Return the body that a Qdrant server posts for texts."""
    inputs = [{"data": text, "data_type": "text", "model": model, "options": None} | fields for text in texts]
    return {"inputs": inputs, "inference": side, "token": None}


def aligned(name: str = "pair"):  # type: ignore[no-untyped-def]
    """Return a pair whose query vector of a text is its document vector."""
    return pair(name, query=HashEncoder(salt=name), document=HashEncoder(salt=name))


@pytest.fixture
def filled(client: QdrantClient) -> Iterator[QdrantClient]:
    documents = [
        Document(
            f"d{number}", text, title=f"第{number}篇", metadata={"n": number, "dept": "内科" if number % 2 else "外科"}
        )
        for number, text in enumerate(TEXTS)
    ]
    ingest(documents, aligned(), client, "corpus", settings=IngestSettings(sparse=True))
    yield client
