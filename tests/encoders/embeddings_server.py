"""An embeddings server on a real socket, with faults on demand."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import numpy as np

from care_qdrant.encoders.torch import load_sentence_transformer

Fault = Callable[[list[list[int]]], tuple[int, Any] | None]
DROPPED = -1
"""Status of a server that is killed before it answers."""


class EmbeddingServer(ThreadingHTTPServer):
    """Speaks OpenAI's protocol for the tower of a pair: full-width vectors, not normalised, rows in reverse order."""

    daemon_threads = True

    def __init__(self, tower: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = load_sentence_transformer(tower, "cpu")
        self.faults: list[Fault] = []
        """One per request, taken from the front; None passes."""
        self.requests: list[dict[str, Any]] = []
        self.change: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors

    @classmethod
    @contextmanager
    def serving(cls, tower: Path) -> Iterator[Self]:
        """Answer on a thread during the block."""
        server = cls(tower)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def embed(self, inputs: list[list[int] | str]) -> list[dict[str, Any]]:
        import torch

        rows = []
        for index, given in enumerate(inputs):
            ids = self.model.tokenizer(given)["input_ids"] if isinstance(given, str) else given
            features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
            with torch.inference_mode():
                for module in list(self.model)[:2]:
                    features = module(features)
            vector = self.change(features["sentence_embedding"][0].numpy())
            rows.append({"object": "embedding", "index": index, "embedding": vector.tolist()})
        return rows[::-1]


class _Handler(BaseHTTPRequestHandler):
    server: EmbeddingServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        fault = self.server.faults.pop(0)(body["input"]) if self.server.faults else None
        status, answer = fault or (200, {"data": self.server.embed(body["input"])})
        if status == DROPPED:
            self.connection.close()
            return
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def _half(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[: len(rows) // 2]


def _all(value: float, width: int = 64) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda rows: [row | {"embedding": [value] * width} for row in rows]


UNUSABLE: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "half a batch": (_half, "shape"),
    "no rows": (lambda rows: [], "shape"),
    "NaN": (_all(float("nan")), "not finite"),
    "zero vectors": (_all(0.0), "no length"),
    "another dimension": (_all(1.0, 7), "expected"),
    "no embeddings": (lambda rows: [{"detail": "?"}], "no list of embeddings"),
}
