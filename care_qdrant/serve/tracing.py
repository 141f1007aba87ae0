"""Traces of requests (extra `otel`): a span for each request, and in it the queue, the encoder and the search.

The environment variables of OpenTelemetry say where they go; without
`OTEL_EXPORTER_OTLP_ENDPOINT` there are none. A request whose client traces it (``traceparent``) is traced where the
client says so, and one of fifty others, unless `OTEL_TRACES_SAMPLER` says else. With traces or without, Qdrant gets the
id of the request and the ``traceparent``.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from qdrant_client import context_headers

from care_qdrant.errors import needs_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SAMPLED = 0.02
"""Share of the requests without a ``traceparent`` that are traced: a trace costs some 0.2 ms of CPU."""


class Trace:
    """The span of one request that is recorded."""

    def __init__(self, tracer: "Tracer", span: "Span") -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer, self.span = tracer, span
        self._context = set_span_in_context(span)

    def add(self, name: str, started: int, ended: int, **attributes: Any) -> None:
        """Record a part that is over; times are `time.time_ns()`."""
        self._tracer.start_span(name, self._context, start_time=started, attributes=attributes).end(ended)

    @contextmanager
    def part(self, name: str, **attributes: Any) -> Iterator[None]:
        """Record what the block does, and let it be the parent of what Qdrant records."""
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(name, self._context, kind=SpanKind.CLIENT, attributes=attributes)
        try:
            with context_headers.headers({"traceparent": _traceparent(span)}):
                yield
        finally:
            span.end()


_CURRENT: ContextVar[Trace | None] = ContextVar("care_trace", default=None)


def current() -> Trace | None:
    """Return the trace of the request that is being answered; None where it is not recorded."""
    return _CURRENT.get()


class Tracing:
    """Makes traces where the environment asks for them; begun in the process that serves, since it starts a thread."""

    def __init__(self) -> None:
        self._provider = None
        if any(os.environ.get(name) for name in ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "") != "true":
            with needs_extra("otel", "tracing"):
                self._provider = _provider()
                self._tracer = self._provider.get_tracer("care_qdrant.serve")

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str], request_id: str) -> Iterator["Span | None"]:
        """Trace a request, as long as the block answers it."""
        if self._provider is None:
            traceparent = headers.get("traceparent")
            given = {"traceparent": traceparent} if traceparent else {}
            with context_headers.headers({"x-request-id": request_id, **given}):
                yield None
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(headers)
        span = self._tracer.start_span(method, parent, kind=SpanKind.SERVER)
        token = _CURRENT.set(Trace(self._tracer, span)) if span.is_recording() else None
        try:
            with context_headers.headers({"x-request-id": request_id, "traceparent": _traceparent(span)}):
                yield span
        finally:
            span.end()
            if token is not None:
                _CURRENT.reset(token)

    def close(self) -> None:
        """Send what was recorded."""
        if self._provider is not None:
            self._provider.shutdown()


class Moments:
    """The moments at which a text went into a queue, its run began, and its run ended."""

    def __init__(self) -> None:
        self.queued = time.time_ns()
        self.began = self.ended = self.queued

    def ran(self, began: int) -> None:
        """Note that the run which began then is over."""
        self.began, self.ended = max(began, self.queued), time.time_ns()

    def record(self, trace: Trace, side: str, texts: int) -> None:
        """Add the two parts to a trace."""
        trace.add("queue", self.queued, self.began, **{"care.side": side})
        trace.add("encode", self.began, self.ended, **{"care.side": side, "care.texts": texts})


def _provider() -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    sampler = None if "OTEL_TRACES_SAMPLER" in os.environ else ParentBasedTraceIdRatio(SAMPLED)
    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "care-serve"}
    provider = TracerProvider(sampler=sampler, resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _traceparent(span: "Span") -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
