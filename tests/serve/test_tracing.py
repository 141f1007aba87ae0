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
    """Receive what the services of this test trace."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


async def test_a_request_is_a_span_with_the_times_of_its_parts(
    make_service, connect, client: QdrantClient, receiver: Receiver
) -> None:
    ingest([Document(f"d{n}", text) for n, text in enumerate(TEXTS)], aligned(), client, "corpus")
    service = make_service(aligned(), collections=("corpus",), over=client)
    http = connect(service)
    headers = {"traceparent": SAMPLED, "x-request-id": "mine"}
    assert (await http.post("/search", json={"query": TEXTS[1]}, headers=headers)).status_code == 200
    assert (await http.post("/search", json={"query": " "}, headers={"traceparent": NOT_SAMPLED})).status_code == 400
    assert (await http.post("/inference", json=asked(" "))).status_code == 400
    service.close()
    assert receiver.resources["service.name"] == "care-serve"
    found, refused = receiver.spans  # a client that does not trace is not traced
    assert (found.name, found.trace_id.hex(), found.parent_span_id.hex()) == ("POST /search", TRACE, PARENT)
    said = attributes(found)
    assert (said["http.response.status_code"], said["care.request_id"], said["care.collection"]) == (
        200,
        "mine",
        "corpus",
    )
    seconds = (found.end_time_unix_nano - found.start_time_unix_nano) / 1e9
    assert 0 < said["care.encode_ms"] + said["care.search_ms"] <= said["care.total_ms"] <= 1000 * seconds
    assert (refused.name, attributes(refused)["error.type"]) == ("POST /inference", "blank_text")
    assert not any(TEXTS[1] in str(span) for span in receiver.spans)


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
    span = next((span for span in receiver.spans if span.name == "POST /search"), None) if receiver else None
    assert traceparent == (SAMPLED if span is None else f"00-{TRACE}-{span.span_id.hex()}-01")


async def test_the_environment_says_which_requests_are_traced(
    make_service, connect, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    service = make_service()
    assert (await connect(service).get("/v1/models")).status_code == 200
    service.close()
    assert not receiver.spans
