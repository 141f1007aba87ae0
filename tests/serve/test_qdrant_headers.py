"""The headers that Qdrant gets with a request of the service, so that the logs and traces of both can be joined."""

from typing import Any

import pytest

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.types import Document
from tests.serve.conftest import aligned
from tests.standin import StandIn
from tests.standin.test_standin import connect as connect_qdrant
from tests.tiny import TEXTS

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_qdrant_gets_the_request_id_and_the_trace(make_service, connect, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    with StandIn() as server:
        qdrant = connect_qdrant(server)
        ingest([Document(f"d{n}", text) for n, text in enumerate(TEXTS)], aligned(), qdrant, "corpus")
        service = make_service(aligned(), collections=("corpus",), over=qdrant)
        # Else it is measured beside the search, in requests of the service's own.
        assert (await connect(service).post("/good-match", json={})).status_code == 200
        http = qdrant._client.openapi_client.client._client
        send = http.send
        monkeypatch.setattr(http, "send", lambda sent: heard.append(sent.headers) or send(sent))
        headers = {"traceparent": TRACEPARENT, "x-request-id": "mine"}
        assert (await connect(service).post("/search", json={"query": TEXTS[1]}, headers=headers)).status_code == 200
        traced = len(heard)
        assert (await connect(service).post("/search", json={"query": TEXTS[2]})).status_code == 200
        service.close()
    assert traced and len(heard) > traced
    assert {(each["x-request-id"], each["traceparent"]) for each in heard[:traced]} == {("mine", TRACEPARENT)}
    assert not any("traceparent" in each or each["x-request-id"] == "mine" for each in heard[traced:])
