"""The bounded queues in front of the encoders: batches across clients, refusals, cancelled requests, slow documents."""

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient

from care_qdrant.serve.app import Service
from tests.serve.conftest import asked, pair
from tests.tiny import HashEncoder, medical_texts


class GatedEncoder(HashEncoder):
    """Encodes when it is let; notes the texts of each run."""

    def __init__(self, salt: str = "") -> None:
        super().__init__(salt=salt)
        self.gate, self.entered = threading.Event(), threading.Event()
        self.runs: list[list[str]] = []

    def encode(self, texts, *, prompt=None):
        self.runs.append(list(texts))
        self.entered.set()
        assert self.gate.wait(20)
        return super().encode(texts, prompt=prompt)


async def entered(encoder: GatedEncoder) -> None:
    assert await asyncio.to_thread(encoder.entered.wait, 10)


async def test_requests_of_many_clients_share_runs_and_none_is_crossed(make_service) -> None:
    gated = GatedEncoder()
    [served] = make_service(pair(query=gated)).models
    first = asyncio.create_task(served.encode(["第一"], "query"))
    await entered(gated)
    texts = medical_texts(20)
    others = [asyncio.create_task(served.encode([text], "query")) for text in texts]
    await asyncio.sleep(0)
    gated.gate.set()
    rows = [(await task)[0] for task in (first, *others)]
    assert np.array_equal(np.stack(rows), HashEncoder().encode(["第一", *texts]))
    assert len(gated.runs) <= 3


async def test_what_passes_the_limit_is_refused_and_what_was_accepted_is_answered(make_service, connect) -> None:
    gated = GatedEncoder()
    service = make_service(pair(query=gated), limits={"batch_texts": 4, "waiting_texts": 4})
    http = connect(service)
    accepted = asyncio.create_task(http.post("/inference", json=asked("一", "二", "三")))
    await entered(gated)
    refused = await http.post("/inference", json=asked("四", "五"))
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    gated.gate.set()
    assert (await accepted).status_code == 200
    assert (await http.post("/inference", json=asked("四", "五"))).status_code == 200


async def test_terms_of_bm25_take_room_as_vectors_do(make_service, connect) -> None:
    gated = GatedEncoder()
    service = make_service(pair(query=gated), limits={"batch_texts": 4, "waiting_texts": 4})
    http, terms = connect(service), {"model": "pair/bm25"}
    accepted = asyncio.create_task(http.post("/inference", json=asked("一", "二", "三")))
    await entered(gated)
    refused = await http.post("/inference", json=asked("四", "五", **terms))
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert (await http.post("/inference", json=asked("四", **terms))).status_code == 200
    gated.gate.set()
    assert (await accepted).status_code == 200
    assert (await http.post("/inference", json=asked("四", "五", **terms))).status_code == 200


async def test_a_large_request_lets_a_small_one_in_between(make_service) -> None:
    gated = GatedEncoder()
    [served] = make_service(pair(query=gated)).models
    large = asyncio.create_task(served.encode(medical_texts(320), "query"))
    await entered(gated)
    small = asyncio.create_task(served.encode(["小"], "query"))
    await asyncio.sleep(0)
    gated.gate.set()
    await small
    assert not large.done()
    assert len(await large) == 320


async def test_a_cancelled_request_gives_its_room_back_and_costs_no_run(make_service) -> None:
    gated = GatedEncoder()
    [served] = make_service(pair(query=gated), limits={"batch_texts": 8, "waiting_texts": 8}).models
    running = asyncio.create_task(served.encode(["一"], "query"))
    await entered(gated)
    waiting = asyncio.create_task(served.encode(["二", "三"], "query"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    more = asyncio.create_task(served.encode(list("四五六七八九十"), "query"))
    await asyncio.sleep(0)
    gated.gate.set()
    await running
    assert len(await more) == 7
    assert not {"二", "三"} & {text for run in gated.runs for text in run}


async def test_a_text_that_is_refused_fails_its_request_alone(make_service, connect) -> None:
    class Picky(HashEncoder):
        def encode(self, texts, *, prompt=None):
            vectors = super().encode(texts, prompt=prompt)
            vectors[[text == "坏" for text in texts]] = np.nan
            return vectors

    http = connect(make_service(pair(query=Picky())))
    good, bad = await asyncio.gather(
        http.post("/inference", json=asked("好", "也好")), http.post("/inference", json=asked("好", "坏"))
    )
    assert good.status_code == 200
    assert (bad.status_code, bad.json()["code"]) == (400, "not_encodable")


async def test_a_slow_document_encoder_does_not_hold_up_queries(make_service, connect) -> None:
    gated = GatedEncoder("document")
    service = make_service(pair(document=gated), documents=True)
    http = connect(service)
    gated.gate.set()
    await service.load()
    gated.gate.clear()
    gated.entered.clear()
    documents = asyncio.create_task(http.post("/inference", json=asked(*medical_texts(100), side="update")))
    await entered(gated)
    for text in medical_texts(50):
        assert (await http.post("/inference", json=asked(text))).status_code == 200
    assert not documents.done()
    gated.gate.set()
    assert len((await documents).json()["embeddings"]) == 100


async def test_documents_are_stripped_as_the_ingestion_does_it(make_service) -> None:
    model = pair()
    service = make_service(model, documents=True)
    await service.load()
    [served] = service.models
    assert np.array_equal(await served.encode([" 发烧\n"], "document"), model.encode_document(["发烧"]))


async def test_closing_answers_what_was_accepted(make_service) -> None:
    gated = GatedEncoder()
    service = make_service(pair(query=gated))
    [served] = service.models
    accepted = asyncio.create_task(served.encode(medical_texts(10), "query"))
    await entered(gated)
    gated.gate.set()
    await asyncio.to_thread(service.close)
    assert len(await accepted) == 10


async def test_the_same_pair_twice_is_refused(make_service) -> None:
    with pytest.raises(Exception, match="given twice"):
        make_service(pair(), pair())


async def leave(service: Service, path: str, body: bytes) -> None:
    """Ask, and close the connection before the answer is there."""
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    sent: list[object] = []

    async def receive():
        await asyncio.sleep(0.05 if len(messages) == 1 else 0)
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    await service.app(scope, receive, send)
    assert not sent


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/search", {"query": "二"}),
        ("/v1/embeddings", {"model": "pair", "input": "二"}),
        ("/inference", asked("二")),
    ],
)
async def test_a_request_whose_client_leaves_leaves_the_queue(
    make_service, client: QdrantClient, path: str, body: dict[str, Any]
) -> None:
    gated = GatedEncoder()
    service = make_service(pair(query=gated), collections=("corpus",), over=client)
    [served] = service.models
    running = asyncio.create_task(served.encode(["一"], "query"))
    await entered(gated)
    await leave(service, path, json.dumps(body).encode())
    gated.gate.set()
    await running
    await served.encode(["三"], "query")
    assert gated.runs == [["一"], ["三"]]
