"""The outermost layer of the service, for every request: identity, refusals, security headers, log and counters."""

import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from qdrant_client import context_headers
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from care_qdrant.serve.keys import EVERYTHING, Key, Keys, presented_key
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.refusal import Refusal, refusal_of
from care_qdrant.serve.settings import LOOPBACK

logger = logging.getLogger(__name__)
access_log = logging.getLogger("care_qdrant.serve.access")

OPEN_PATHS = ("/health", "/ready")
"""Answered without a key, and then only with the state of the process."""
METRICS_PATH = "/metrics"
KEY_IN_BODY = "/inference"
"""Qdrant sends the key of its configuration in the body; the endpoint checks it."""

_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_TRACEPARENT = re.compile(r"[\w-]{1,128}", re.ASCII)
_SECURITY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_UNREAD_BODY = (401, 408, 413)
"""The connection is closed: the rest of the body is not worth reading."""


class ClientGone(Exception):
    """The client closed the connection before its answer was ready."""


@dataclass(slots=True)
class Exchange:
    """One request, as the log shows it: no text, no key."""

    method: str
    path: str
    request_id: str
    client: str | None = None
    """Address of the client, or of the proxy in front of the service."""
    key: Key | None = None
    """Key of the client, or the one that stands for it where none is needed; None for a request that showed none."""
    internal: bool = False
    """Whether the request arrived at the metrics port."""
    route: str = "unknown"
    status: int = 500
    code: str | None = None
    """Word of the refusal; None for a request that was not refused."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts for the log that the endpoint adds: number of texts, model, side."""


class Gateway:
    """The outermost layer of the service."""

    def __init__(
        self, paths: Mapping[str, ASGIApp], *, keys: Keys, metrics: Metrics, host: str, metrics_port: int | None
    ) -> None:
        self._paths, self._keys, self._metrics, self._metrics_port = paths, keys, metrics, metrics_port
        self._only_loopback = host in LOOPBACK and not keys.required
        self.draining = False
        """Whether each answer asks its client to open a new connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with a refusal where it fails."""
        started = time.perf_counter()
        headers = Headers(scope=scope)
        client = (scope.get("client") or (None,))[0]
        exchange = Exchange(scope["method"], scope["path"], _request_id(headers), client)
        scope["exchange"] = exchange

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                self._add_headers(MutableHeaders(scope=message), exchange)
            await send(message)

        with context_headers.headers(_for_qdrant(headers, exchange.request_id)):
            try:
                exchange.internal = (scope.get("server") or ("", None))[1] == self._metrics_port is not None
                self._admit(headers, exchange)
                # The same text that was admitted: a pattern would also match a path with a line feed behind it.
                if (app := self._paths.get(exchange.path)) is None:
                    raise unknown_path()
                await app(scope, receive, send_with_headers)
            except ClientGone:
                exchange.status, exchange.code = 499, "client_gone"
            except Exception as error:
                await self._refuse(error, exchange, scope, receive, send_with_headers)
            finally:
                self._account(exchange, time.perf_counter() - started)

    def _admit(self, headers: Headers, exchange: Exchange) -> None:
        if self._only_loopback and _host_name(headers.get("host", "")) not in LOOPBACK:
            raise Refusal(
                421,
                "unknown_host",
                "without API keys this service answers only requests that are addressed to localhost; "
                "start it with --keys",
            )
        if exchange.internal and exchange.path not in (METRICS_PATH, *OPEN_PATHS):
            raise unknown_path()
        if exchange.path == METRICS_PATH and not exchange.internal and self._metrics_port is not None:
            raise unknown_path()
        if not self._keys.required or exchange.internal:
            exchange.key = EVERYTHING
            return
        key = presented_key(headers)
        exchange.key = self._keys.identify(key)
        may_come_later = key is None and exchange.path == KEY_IN_BODY
        if exchange.key is None and not may_come_later and exchange.path not in OPEN_PATHS:
            raise unknown_key(given=key is not None)

    async def _refuse(self, error: Exception, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = refusal_of(error)
        if refusal is None:
            logger.error("request %s failed", exchange.request_id, exc_info=error)
            refusal = Refusal(500, "internal", "the service failed; its log has the reason under this request_id")
        exchange.code = refusal.code
        body = to_json(refusal.body(exchange.path, exchange.request_id))
        await Response(body, refusal.status, refusal.headers(), "application/json")(scope, receive, send)

    def _add_headers(self, headers: MutableHeaders, exchange: Exchange) -> None:
        headers["x-request-id"] = exchange.request_id
        for name, value in _SECURITY.items():
            headers.setdefault(name, value)
        if self.draining or exchange.status in _UNREAD_BODY:
            headers["connection"] = "close"

    def _account(self, exchange: Exchange, seconds: float) -> None:
        self._metrics.requests.labels(exchange.route, str(exchange.status)).inc()
        self._metrics.seconds.labels(exchange.route).observe(seconds)
        if exchange.code is not None:
            self._metrics.refusals.labels(exchange.code).inc()
        if access_log.isEnabledFor(logging.INFO):
            access_log.info(_one_line(json.dumps(_line(exchange, seconds), ensure_ascii=False)))


def unknown_path() -> Refusal:
    """Return the refusal of a request for an unknown path."""
    return Refusal(404, "unknown_path", "there is no such path; /openapi.json lists all paths")


def unknown_key(*, given: bool) -> Refusal:
    """Return the refusal of a request that shows no accepted key."""
    problem = "this API key is not accepted" if given else "this service needs an API key"
    return Refusal(401, "unauthorized", f"{problem}; send it as: Authorization: Bearer KEY")


def _line(exchange: Exchange, seconds: float) -> Mapping[str, Any]:
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "client": exchange.client,
        "request_id": exchange.request_id,
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status,
        "ms": round(seconds * 1000, 3),
        "key": (exchange.key or EVERYTHING).id or None,
        "code": exchange.code,
        **exchange.facts,
    }
    return {name: value for name, value in line.items() if value is not None}


def _one_line(text: str) -> str:
    """Return a JSON text without characters that break a line or steer a terminal; it means the same."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def _for_qdrant(headers: Headers, request_id: str) -> dict[str, str]:
    """Return the headers by which Qdrant's log and traces can be joined with this request."""
    traceparent = headers.get("traceparent", "")
    return {"x-request-id": request_id} | ({"traceparent": traceparent} if _TRACEPARENT.fullmatch(traceparent) else {})


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _host_name(host: str) -> str:
    return host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0].lower()
