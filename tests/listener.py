"""A server on a real socket that shows what reaches it."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Listener:
    """A server that writes down every header that reaches it, and answers as a Qdrant without collections."""

    def __init__(self) -> None:
        self.received: list[str] = []
        listener = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.received += self.headers.values()
                body = b'{"result": {"collections": [], "aliases": []}, "status": "ok", "time": 0}'
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_PATCH = do_GET  # noqa: N815  # the names of http.server

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def got(self, key: str) -> bool:
        return any(key in value for value in self.received)


@contextmanager
def listening() -> Iterator[Listener]:
    """Listen on a free port of loopback while the block runs."""
    found = Listener()
    with found.server:
        threading.Thread(target=found.server.serve_forever, daemon=True).start()
        yield found
        found.server.shutdown()
