"""The HTTP side of the stand-in: sockets, keys, size limit and faults."""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import httpx

from tests.standin.call import NoRoute, NotFound
from tests.standin.engine import Engine, is_write
from tests.standin.faults import Fault, Faults
from tests.standin.refusals import refusal
from tests.standin.strict import RateExceeded

KEPT = ("content-type", "retry-after")
"""Headers of a real server's answer that a client reads."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that turns a close into a TCP reset."""


class Request(NamedTuple):
    """A line of the log."""

    method: str
    path: str
    size_bytes: int


class Answer(NamedTuple):
    """The answer that is sent back."""

    code: int
    content: bytes
    headers: Mapping[str, str]


class StandIn:
    """A Qdrant server on 127.0.0.1; use it as a context manager."""

    def __init__(
        self,
        *,
        version: str = "1.19.0",
        path: str | None = None,
        max_bytes: int = 32 * 1024 * 1024,
        port: int = 0,
        api_key: str | None = None,
        read_only_key: str | None = None,
        engine: type[Engine] = Engine,
        upstream: str | None = None,
    ) -> None:
        # Kept alive for less than the server's own five seconds, so that no request meets a connection that it closes.
        keep_alive = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2)
        self._upstream = (
            None if upstream is None else httpx.Client(base_url=upstream, timeout=None, limits=keep_alive, verify=False)
        )
        self.engine = engine(path, version)
        self.max_bytes = max_bytes
        self.api_key = api_key
        self.read_only_key = read_only_key
        self.faults = Faults()
        self.requests: list[Request] = []
        self.released = threading.Event()
        """Set when the server stops, so that a silent connection ends."""
        self._connections: set[socket.socket] = set()
        self._listen(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self.go_away()
        self.engine.local.close()
        if self._upstream is not None:
            self._upstream.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, method: str, path_ends: str) -> int:
        """Return how many requests came to a path."""
        return sum(each.method == method and each.path.endswith(path_ends) for each in list(self.requests))

    def respond(self, method: str, target: str, content_type: str, body: bytes) -> Answer:
        """Answer a request: by the server in whose place this one stands, or by the engine."""
        if self._upstream is None:
            code, result = _result(self.engine, method, unquote(urlsplit(target).path), body)
            return _answer(code, result)
        headers = {"content-type": content_type} if content_type else {}
        real = self._upstream.request(method, target, content=body, headers=headers)
        return Answer(
            real.status_code, real.content, {name: real.headers[name] for name in KEPT if name in real.headers}
        )

    def go_away(self) -> None:
        """Refuse connections, and cut those that are open."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            _cut(connection)

    def come_back(self) -> None:
        """Listen again on the same port."""
        self._listen(self.port)

    def _listen(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), self)
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], standin: StandIn) -> None:
        self.standin = standin
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no error of a server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.standin._connections.add(self.connection)

    def finish(self) -> None:
        self.server.standin._connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep quiet; `StandIn.requests` is the log."""

    def _go(self) -> None:
        standin = self.server.standin
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        standin.requests.append(Request(self.command, path, len(body)))
        if refused := self._refusal(standin, path, len(body)):
            self._send(refused)
        elif fault := standin.faults.take(self.command, path):
            self._fail(standin, fault, body)
        else:
            self._send(self._respond(standin, body))

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _go  # noqa: N815

    def _refusal(self, standin: StandIn, path: str, size: int) -> Answer | None:
        key = self.headers.get("api-key")
        if standin.api_key is not None and key not in (standin.api_key, standin.read_only_key):
            return _answer(401, "Must provide an API key or an Authorization bearer token")
        if key is not None and key == standin.read_only_key and is_write(self.command, path):
            return _answer(403, _error("Forbidden: Global manage access is required"))
        if size > standin.max_bytes:
            return _answer(413, _error(f"Payload reached size limit: limit: {standin.max_bytes}, received: {size}"))
        return None

    def _respond(self, standin: StandIn, body: bytes) -> Answer:
        return standin.respond(self.command, self.path, self.headers.get("content-type", ""), body)

    def _fail(self, standin: StandIn, fault: Fault, body: bytes) -> None:
        if fault.kind == "500":
            self._send(_answer(500, _error("Service internal error: injected")))
        elif fault.kind == "429":
            self._send(_answer(429, _error("Rate limiting exceeded: retry later"), seconds=fault.seconds))
        elif fault.kind == "timeout":
            standin.released.wait(fault.seconds)
            self.close_connection = True
        elif fault.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            os.close(self.connection.detach())
            self.close_connection = True
        elif fault.kind == "drop":
            self._respond(standin, body)
            _cut(self.connection)
        else:
            self._send(_with_status(self._respond(standin, body), fault.kind))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        self.send_header("content-length", str(len(answer.content)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)


def _answer(code: int, body: Any, *, seconds: float | None = None) -> Answer:
    content, kind = (body, "text/plain") if isinstance(body, str) else (json.dumps(body), "application/json")
    later = {} if seconds is None else {"retry-after": f"{seconds:g}"}
    return Answer(code, content.encode(), {"content-type": kind, **later})


def _with_status(answer: Answer, status: str) -> Answer:
    """Return an answer with another status than the one that says that all is done."""
    body = json.loads(answer.content)
    result = body.get("result")
    if isinstance(result, dict) and result.get("status") in ("completed", "green"):
        result["status"] = status
    return _answer(answer.code, body)


def _result(engine: Engine, method: str, path: str, body: bytes) -> tuple[int, Any]:
    if path == "/":
        return 200, {"title": "qdrant - vector search engine", "version": engine.version, "commit": "stand-in"}
    try:
        return 200, {"result": engine.answer(method, path, body), "status": "ok", "time": 0.0}
    except NoRoute:
        return 404, ""
    except NotFound as error:
        return 404, _error(f"Not found: {error}")
    except RateExceeded as error:
        return 429, _error(str(error))
    except (KeyError, ValueError) as error:
        code, text = refusal(error)
        return code, _error(text)


def _error(message: str) -> dict[str, Any]:
    return {"status": {"error": message}, "time": 0.0}


def _cut(connection: socket.socket) -> None:
    """End a connection; its handler closes the socket."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
