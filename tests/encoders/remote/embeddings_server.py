"""A real embeddings server in a process of its own: a pair behind OpenAI's wire, with faults on demand.

``python -m tests.encoders.remote.embeddings_server PORT FOLDER [--other]``; ``--other`` serves other
weights under that name.
``POST /fault`` with ``{"kind": …, "count": n}`` spoils the next n answers.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from care_qdrant.model.care_model import CareModel

Rows = list[dict[str, Any]]


def _constant(rows: Rows, value: float, width: int | None = None) -> Rows:
    return [row | {"embedding": [value] * (width or len(row["embedding"]))} for row in rows]


FAULTS: dict[str, Any] = {
    "half": lambda rows: rows[: len(rows) // 2],
    "nan": lambda rows: _constant(rows, float("nan")),
    "zero": lambda rows: _constant(rows, 0.0),
    "width": lambda rows: _constant(rows, 1.0, 7),
}


class Handler(BaseHTTPRequestHandler):
    """Answers one request after the other of a connection."""

    protocol_version = "HTTP/1.1"
    model: CareModel
    turned: bool
    faults: list[str]
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/fault":
            self.faults += [body["kind"]] * body["count"]
            return self._answer(200, {})
        with self.lock:
            fault = self.faults.pop(0) if self.faults else ""
        if fault == "429":
            return self._answer(429, {})
        if fault == "slow":
            time.sleep(0.3)
        vectors = self.model.encode_document(body["input"])
        vectors = np.roll(vectors, 1, axis=1) if self.turned else vectors
        rows = [{"index": index, "embedding": row.tolist()} for index, row in enumerate(vectors)]
        return self._answer(200, {"data": FAULTS[fault](rows) if fault in FAULTS else rows})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Serve until killed."""
    Handler.model, Handler.turned, Handler.faults = CareModel.load(sys.argv[2]), "--other" in sys.argv, []
    Handler.model.encode_document(["热"])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
