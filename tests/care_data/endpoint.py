"""A local stand-in of OpenAI's API, on a real socket: it rates, writes, fails on demand, and keeps the bill."""

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_SECONDS = 1.5
"""Longer than the clients of the tests wait."""
Rate = Callable[[str, str, str], str]
"""Model, query, document → letter."""


@dataclass
class Faults:
    """Shares of calls, decided by the call itself, that fail the first time."""

    busy: float = 0.0
    """429 with Retry-After."""
    broken: float = 0.0
    """500."""
    slow: float = 0.0
    """Answered and billed after the client has gone."""
    wrong_json: float = 0.0
    refused: float = 0.0
    partial: float = 0.0
    """One document is left out."""
    cut: float = 0.0
    """JSON that ends too early, and has to be repaired."""


@dataclass
class Bill:
    """Requests that were sent, and those that were billed, by key of the call."""

    sent: Counter[str] = field(default_factory=Counter)
    billed: Counter[str] = field(default_factory=Counter)


class Endpoint:
    """The server; ``url`` is that of an OpenAI-compatible API."""

    def __init__(self, rate: Rate, faults: Faults | None = None, *, idempotent: bool = True) -> None:
        self.rate, self.faults, self.idempotent = rate, faults or Faults(), idempotent
        self.bill, self.lock, self.paid = Bill(), threading.Lock(), dict[str, bytes]()
        self.before_answer: Callable[[], None] = lambda: None
        self.write: Callable[[str], str] = lambda prompt: "{}"
        """Answer to a prompt that asks for no ratings."""
        self.embed: Callable[[list[str]], list[list[float]]] = lambda texts: []
        self.down: set[str] = set()
        self._attempts: dict[str, list[str]] = {}
        """Keys of the same request, in the order in which they came."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "Endpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if handler.path.endswith("/embeddings"):
            rows = [{"index": at, "embedding": row} for at, row in enumerate(self.embed(body["input"]))]
            self._write(handler, 200, json.dumps({"data": rows[::-1]}).encode())
            return
        key = handler.headers["Idempotency-Key"]
        with self.lock:
            self.bill.sent[key] += 1
            first = self.bill.sent[key] == 1
            # The key depends on the port, which is another one in each run: the request and its attempt do not.
            attempts = self._attempts.setdefault(json.dumps(body, sort_keys=True), [])
            if key not in attempts:
                attempts.append(key)
            call = json.dumps([body, attempts.index(key)], sort_keys=True)
        draw = random.Random(call).random
        if body["model"] in self.down:
            self._write(handler, 503, b"{}")
            return
        if first and draw() < self.faults.busy:
            self._write(handler, 429, b"{}", {"Retry-After": "0.01"})
            return
        if first and draw() < self.faults.broken:
            self._write(handler, 500, b"oops")
            return
        with self.lock:
            if key not in self.paid or not self.idempotent:
                self.paid[key] = self._completion(body, random.Random(f"content {call}"))
                self.bill.billed[key] += 1
        self.before_answer()
        if first and random.Random(f"slow {call}").random() < self.faults.slow:
            time.sleep(SLOW_SECONDS)
        self._write(handler, 200, self.paid[key])

    def _write(
        self, handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        try:
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(content)
        except OSError:
            handler.close_connection = True  # whoever asked is dead

    def _completion(self, body: Mapping[str, Any], draw: random.Random) -> bytes:
        prompt = body["messages"][0]["content"]
        message: dict[str, Any] = {"role": "assistant", "content": self._content(body["model"], prompt, draw)}
        if draw.random() < self.faults.refused:
            message = {"role": "assistant", "content": None, "refusal": "我不能评价医疗内容。"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(message["content"] or "")}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return json.dumps({"choices": [choice], "usage": usage}).encode()

    def _content(self, model: str, prompt: str, draw: random.Random) -> str:
        if "Passage-" not in prompt:
            return "对不起" if draw.random() < self.faults.wrong_json else self.write(prompt)
        query, passages = read_prompt(prompt)
        grades = {f"Passage-{at}": self.rate(model, query, text) for at, text in enumerate(passages)}
        if draw.random() < self.faults.partial and len(grades) > 1:
            grades.pop(draw.choice(sorted(grades)))
        if draw.random() < self.faults.wrong_json:
            return "这些文本都很有帮助！"
        text = json.dumps(grades)
        if draw.random() < self.faults.cut:
            text = text.removesuffix("}")
        return f"```json\n{text}\n```" if draw.random() < 0.3 else text


def read_prompt(prompt: str) -> tuple[str, list[str]]:
    """Return the query and the passages of a request to judge."""
    _, _, rest = prompt.rpartition("\nQuery: ")
    query, *passages = re.split(r"\n+Passage-\d+: ", rest)
    passages[-1] = re.split(r"\n+(?:输出：|Output:)", passages[-1])[0]
    return query.strip(), [passage.strip() for passage in passages]
