"""The hub's endpoints that an upload uses, on a real socket."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_standin"


@dataclass
class Hub:
    """What a test sees and sets."""

    url: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: ``private``, and the ``files`` of the last commit."""
    requests: list[str] = field(default_factory=list)
    failures: dict[str, list[int]] = field(default_factory=dict)
    """By the end of a path the statuses that its next requests get."""


@contextmanager
def hub() -> Iterator[Hub]:
    """Run a hub until the block ends."""
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            path = self.path.split("?")[0]
            state.requests.append(path)
            planned = next((statuses for end, statuses in state.failures.items() if path.endswith(end)), [])
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, answer = 401, {"error": "Invalid credentials"}
            elif planned:
                status, answer = planned.pop(0), {"error": "planned"}
            else:
                status, answer = _respond(state, path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _respond(state: Hub, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    if path == "/api/validate-yaml":
        return 200, {"warnings": [], "errors": []}
    if path == "/api/repos/create":
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in state.repositories:
            return 409, {"error": "exists", "url": f"{state.url}/{name}"}
        private = wanted.get("private") or wanted.get("visibility") == "private"
        state.repositories[name] = {"private": bool(private), "files": {}}
        return 200, {"url": f"{state.url}/{name}"}
    _, _, _, organisation, model, *rest = path.split("/")
    name = f"{organisation}/{model}"
    if name not in state.repositories:
        return 404, {"error": "not found"}
    if not rest:
        return 200, {"id": name, "private": state.repositories[name]["private"], "sha": "0" * 40}
    if rest[0] == "preupload":
        files = [
            {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]
        ]
        return 200, {"files": files}
    if rest[0] == "commit":
        lines = [json.loads(line) for line in body.splitlines()]
        files = {line["value"]["path"]: line["value"] for line in lines if line["key"] == "file"}
        contents = {path: base64.b64decode(value["content"]) for path, value in files.items()}
        state.repositories[name]["files"] = contents
        return 200, {"commitUrl": f"{state.url}/{name}/commit/1", "commitOid": "1" * 40}
    return 404, {"error": f"the stand-in has no {path}"}
