"""A service of two models answers by the one that the collection names as active, and each answer is of one model."""

import asyncio
from collections.abc import Callable
from functools import partial

import httpx
import numpy as np
import pytest
from qdrant_client import QdrantClient

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.search.retriever import Retriever
from care_qdrant.serve import backend
from care_qdrant.serve.app import Service
from care_qdrant.switch.switch import retire_vector, switch_collection, undo_switch
from care_qdrant.types import Document
from tests.serve.conftest import MakeService, pair
from tests.switch.models import TableEncoder, table, texts

TEXTS = texts(60)
ASKED = [text.partition("。")[0] for text in TEXTS[:10]]
OLD, NEW = (
    pair(name, query=TableEncoder(table(seed, 32)), document=TableEncoder(table(seed, 32)))
    for seed, name in enumerate(["old", "new"])
)
SCORES = {model.name: model.encode_query(ASKED) @ model.encode_document(TEXTS).T for model in (OLD, NEW)}


@pytest.fixture
def asked(
    client: QdrantClient,
    make_service: MakeService,
    connect: Callable[[Service], httpx.AsyncClient],
    monkeypatch: pytest.MonkeyPatch,
) -> httpx.AsyncClient:
    """A service of both models over a collection of the old one, which looks at it before each search."""
    monkeypatch.setattr(backend, "Retriever", partial(Retriever, check_seconds=0))
    ingest([Document(f"d{number}", text) for number, text in enumerate(TEXTS)], OLD, client, "c")
    return connect(make_service(OLD, NEW, over=client, collections=("c",)))


async def ask(service: httpx.AsyncClient, number: int, **options: str) -> str:
    """Return the model of an answer; all its scores are those of its own model."""
    answer = await service.post("/search", json={"query": ASKED[number], "mode": "dense", "top_k": 5, **options})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    known = SCORES[body["model"]][number]
    scores = [hit["score"] for hit in body["hits"]]
    assert np.allclose(scores, np.sort(known)[::-1][:5], atol=1e-4)
    assert np.allclose(scores, [known[int(hit["document_id"][1:])] for hit in body["hits"]], atol=1e-4)
    return str(body["model"])


async def first_model(service: httpx.AsyncClient) -> str:
    [state] = (await service.get("/collections")).json()["collections"]
    return str(state["models"][0]).partition("@")[0]


async def test_it_follows_a_switch_and_its_way_back(client: QdrantClient, asked: httpx.AsyncClient) -> None:
    assert (await ask(asked, 0), await first_model(asked)) == ("old", "old")
    switch_collection(client, "c", NEW, OLD, accept="a test")
    assert (await ask(asked, 0), await first_model(asked)) == ("new", "new")
    assert await ask(asked, 0, model="old") == "old"
    undo_switch(client, "c")
    assert await ask(asked, 0) == "old"
    undo_switch(client, "c")
    retire_vector(client, "c", grace_seconds=0)
    assert (await ask(asked, 0), await first_model(asked)) == ("new", "new")


async def test_no_query_fails_or_mixes_models_during_a_switch(client: QdrantClient, asked: httpx.AsyncClient) -> None:
    switch_collection(client, "c", NEW, OLD, accept="a test")
    answered: list[str] = []
    stop = asyncio.Event()

    async def read(start: int) -> None:
        number = start
        while not stop.is_set():
            number += 1
            answered.append(await ask(asked, number % len(ASKED)))

    readers = [asyncio.create_task(read(start)) for start in range(4)]
    for _ in range(6):
        await asyncio.to_thread(undo_switch, client, "c")
        await asyncio.sleep(0.2)
    stop.set()
    await asyncio.gather(*readers)
    assert set(answered) == {"old", "new"}


async def test_a_service_answers_by_the_only_model_that_can(client: QdrantClient, asked: httpx.AsyncClient) -> None:
    """The first model is not asked where it made no vector of the collection."""
    client.delete_collection("c")
    ingest([Document(f"d{number}", text) for number, text in enumerate(TEXTS)], NEW, client, "c")
    assert await ask(asked, 0) == "new"


async def test_the_list_of_collections_does_not_warn_of_a_switch(
    client: QdrantClient, asked: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that searches the vector before is no fault of a service that has both; its first search says so."""
    switch_collection(client, "c", NEW, OLD, accept="a test")
    for _ in range(3):
        await first_model(asked)
    assert "was switched" not in caplog.text
    for _ in range(3):
        await ask(asked, 0, model="old")
    assert caplog.text.count("was switched") == 1
