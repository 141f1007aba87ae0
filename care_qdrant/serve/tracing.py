"""Traces of requests (extra `otel`): one span for each, with the times of its parts.

The environment variables of OpenTelemetry say where they go and which requests are traced; without
`OTEL_EXPORTER_OTLP_ENDPOINT` there are none. With traces or without, Qdrant gets the id of the request and the
``traceparent``.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qdrant_client import context_headers

from care_qdrant.errors import needs_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Tracing:
    """Traces requests if the environment asks for it; make it in the process that serves, since it starts a thread."""

    def __init__(self) -> None:
        self._provider = None
        if any(os.environ.get(name) for name in ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "") != "true":
            with needs_extra("otel", "tracing"):
                self._provider = _provider()

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str], request_id: str) -> Iterator["Span | None"]:
        """Trace a request while the block answers it."""
        sent = {"x-request-id": request_id}
        if self._provider is None:
            if traceparent := headers.get("traceparent"):
                sent["traceparent"] = traceparent
            with context_headers.headers(sent):
                yield None
            return
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator, tracer = TraceContextTextMapPropagator(), self._provider.get_tracer("care_qdrant.serve")
        span = tracer.start_span(method, propagator.extract(headers), kind=SpanKind.SERVER)
        propagator.inject(sent, set_span_in_context(span))
        try:
            with context_headers.headers(sent):
                yield span
        finally:
            span.end()

    def close(self) -> None:
        """Send the recorded spans."""
        if self._provider is not None:
            self._provider.shutdown()


def _provider() -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "care-serve"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
