"""Traces as an OTLP receiver gets them, and the headers that Qdrant gets."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from qdrant_client import QdrantClient

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.serve import tracing
from care_qdrant.types import Document
from tests.serve.conftest import aligned, asked
from tests.standin import StandIn
from tests.standin.test_standin import connect as connect_qdrant
from tests.tiny import TEXTS

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


class Receiver(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.resources: dict[str, str] = {}
        self.spans: list[Any] = []


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        sent = self.rfile.read(int(self.headers["content-length"]))
        packed = self.headers["content-encoding"] == "gzip"
        body = ExportTraceServiceRequest.FromString(gzip.decompress(sent) if packed else sent)
        for resource in body.resource_spans:
            self.server.resources |= {each.key: each.value.string_value for each in resource.resource.attributes}
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Receive what the services of this test trace: all requests that their clients do not trace themselves, too."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(tracing, "SAMPLED", 1.0)
        yield server
        server.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


async def test_a_search_is_a_trace_of_queue_encoder_and_search(
    make_service, connect, client: QdrantClient, receiver: Receiver
) -> None:
    ingest([Document(f"d{n}", text) for n, text in enumerate(TEXTS)], aligned(), client, "corpus")
    service = make_service(aligned(), collections=("corpus",), over=client)
    await service.load()
    http = connect(service)
    headers = {"traceparent": SAMPLED, "x-request-id": "mine"}
    assert (await http.post("/search", json={"query": TEXTS[1]}, headers=headers)).status_code == 200
    assert (await http.post("/search", json={"query": " "}, headers={"traceparent": NOT_SAMPLED})).status_code == 400
    service.close()
    assert receiver.resources["service.name"] == "care-serve"
    spans = {span.name: span for span in receiver.spans}
    assert set(spans) == {"POST /search", "queue", "encode", "search"}, "a client that does not trace is not traced"
    root = spans["POST /search"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    said = attributes(root)
    assert (said["http.response.status_code"], said["care.request_id"], said["care.collection"]) == (
        200,
        "mine",
        "corpus",
    )
    for name in ("queue", "encode", "search"):
        assert spans[name].parent_span_id == root.span_id
        assert root.start_time_unix_nano <= spans[name].start_time_unix_nano <= spans[name].end_time_unix_nano
        assert spans[name].end_time_unix_nano <= root.end_time_unix_nano
    assert spans["queue"].end_time_unix_nano == spans["encode"].start_time_unix_nano
    assert spans["encode"].end_time_unix_nano <= spans["search"].start_time_unix_nano
    assert not any(TEXTS[1] in str(span) for span in receiver.spans)


async def test_documents_and_refusals_are_traced(make_service, connect, receiver: Receiver) -> None:
    service = make_service(aligned(), documents=True)
    await service.load()
    http = connect(service)
    await http.post("/inference", json=asked(*TEXTS, side="update"))
    await http.post("/inference", json=asked(" "))
    service.close()
    sides = [attributes(span)["care.side"] for span in receiver.spans if span.name == "encode"]
    assert sides == ["document"]
    codes = [attributes(span).get("error.type") for span in receiver.spans if span.name == "POST /inference"]
    assert codes == [None, "blank_text"]


@pytest.mark.parametrize("traced", [True, False])
async def test_qdrant_gets_the_request_id_and_the_trace(
    make_service, connect, traced: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = request.getfixturevalue("receiver") if traced else None
    heard: list[Any] = []
    with StandIn() as server:
        qdrant = connect_qdrant(server)
        ingest([Document(f"d{n}", text) for n, text in enumerate(TEXTS)], aligned(), qdrant, "corpus")
        service = make_service(aligned(), collections=("corpus",), over=qdrant)
        # Else it is measured beside the search, in requests of the service's own.
        assert (await connect(service).post("/good-match", json={})).status_code == 200
        send = qdrant._client.openapi_client.client._client.send
        monkeypatch.setattr(
            qdrant._client.openapi_client.client._client, "send", lambda sent: heard.append(sent.headers) or send(sent)
        )
        headers = {"traceparent": SAMPLED, "x-request-id": "mine"}
        assert (await connect(service).post("/search", json={"query": TEXTS[1]}, headers=headers)).status_code == 200
        service.close()
    assert heard
    assert {each["x-request-id"] for each in heard} == {"mine"}
    [traceparent] = {each["traceparent"] for each in heard}
    span = next((span for span in receiver.spans if span.name == "search"), None) if receiver else None
    assert traceparent == (SAMPLED if span is None else f"00-{TRACE}-{span.span_id.hex()}-01")


async def test_one_of_fifty_is_traced_unless_the_environment_says_else(
    make_service, connect, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    service = make_service()
    assert (await connect(service).post("/embed", json={"inputs": "发烧"})).status_code == 200
    service.close()
    assert not receiver.spans
