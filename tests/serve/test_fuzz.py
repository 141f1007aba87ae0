"""No request stops the service for others, and none is a failure of the service: random ones over every route."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from qdrant_client import QdrantClient, models

from tests.serve.conftest import KEY, OTHER_KEY, aligned, asked

SHORT, LONG = 150, 6_000
"""Requests of one seed."""
HEALTH_SECONDS = 0.1
"""Longest time in which /health answers, whatever else is asked."""
BUSY = 10
"""Times as long on a machine that tests and client share with the service."""
PATHS = (
    "/inference",
    "/v1/embeddings",
    "/v1/models",
    "/search",
    "/good-match",
    "/labels",
    "/collections",
    "/health",
    "/ready",
    "/metrics",
    "/mcp",
    "/openapi.json",
    "/",
    "/page.js",
    "/nothing",
)
TOOL = {
    "name": "search",
    "arguments": {"query": "发烧", "conditions": ["n>=1"], "score_threshold": 0.1, "group_by": "dept"},
}
BODIES: dict[str, Any] = {
    "/inference": asked("发烧") | {"token": KEY},
    "/v1/embeddings": {"input": ["发烧"], "model": "pair", "task": "retrieval.query", "dimensions": 32},
    "/search": {
        "query": "发烧",
        "collection": "corpus",
        "mode": "auto",
        "top_k": 5,
        "conditions": ["n>=1", "dept=内科"],
        "filter": {"must": [{"key": "n", "match": {"value": 5}}]},
        "group_by": "dept",
        "group_size": 2,
        "score_threshold": 0.1,
        "fusion": "linear",
        "alpha": 0.5,
        "marks": True,
    },
    "/good-match": {"collection": "corpus", "mode": "dense"},
    "/labels": {"query": "发烧", "document_id": "d1", "collection": "corpus", "relevant": True},
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": TOOL},
}


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def nested_filter(depth: int) -> dict[str, Any]:
    condition: dict[str, Any] = {"key": "n", "match": {"value": 5}}
    for _ in range(depth):
        condition = {"must": [condition]}
    return condition


HOSTILE: dict[str, tuple[str, str]] = {
    "many keys, one twice": ("/inference", "{" + "".join(f'"k{n}":1,' for n in range(15_000)) + '"k1":1}'),
    "a condition of brackets": ("/search", json.dumps({"query": "x", "conditions": ["a" + "[]" * 20_000 + "x=1"]})),
    "short conditions of brackets": (
        "/search",
        json.dumps({"query": "x", "conditions": ["a" + "[]" * 490 + "x=1"] * 64}),
    ),
    "a value of brackets": ("/search", json.dumps({"query": "x", "conditions": ["type=" + "[" * 990]})),
    "many conditions": ("/search", json.dumps({"query": "x", "conditions": ["n=1"] * 300_000})),
    "a deep body": ("/search", nested(100_000)),
    "a deep filter": ("/search", json.dumps({"query": "x", "filter": nested_filter(90)})),
    "too deep a filter": ("/search", json.dumps({"query": "x", "filter": nested_filter(400)})),
    "a wide filter": ("/search", json.dumps({"query": "x", "filter": {"must": [nested_filter(0)] * 3_000}})),
    "a long key of groups": ("/search", json.dumps({"query": "x", "group_by": "a" + "[]" * 20_000 + "x"})),
    "many items of another shape": ("/v1/embeddings", '{"model":"pair","input":[' + "{}," * 2_000_000 + "{}]}"),
    "many empty texts": ("/v1/embeddings", '{"model":"pair","input":[' + '"",' * 190_000 + '""]}'),
    "a number beyond all": ("/search", '{"query":"x","top_k":' + "9" * 100_000 + "}"),
    "an argument beyond all": (
        "/mcp",
        json.dumps(BODIES["/mcp"]).replace("0.1", "1e999"),
    ),
}


def odd_value(chance: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.choice([True, False]),
        lambda: chance.choice([0, -1, 1, 2**31, 2**63, 2**64, 10**400, 0.5, float("nan"), float("inf"), -1e308]),
        lambda: "".join(chance.choices('a发[]{}"=<>!.\u2028\x1b\u202e\x00 \ud800', k=chance.choice([0, 1, 9, 2_000]))),
        lambda: chance.choice(
            ["corpus", "pair", "pair/bm25", "pair@ffff", "n>=1", "dept==内科", "query", "rrf", "dense"]
        ),
        lambda: [odd_value(chance, depth + 1) for _ in range(chance.choice([0, 1, 3, 40]))] if depth < 3 else [],
        lambda: {str(odd_value(chance, 9)): odd_value(chance, depth + 1) for _ in range(3)} if depth < 3 else {},
    ]
    return chance.choice(kinds)()


def odd_body(chance: random.Random, path: str) -> bytes:
    body = BODIES.get(path, {"query": "发烧"})
    changed = json.loads(json.dumps(body))
    inner = changed["params"]["arguments"] if path == "/mcp" else changed
    for name in chance.sample([*inner, "more"], k=chance.choice([0, 1, 1, 2])):
        inner[name] = odd_value(chance)
    text = json.dumps(changed, ensure_ascii=chance.random() < 0.7)
    kind = chance.random()
    if kind < 0.7:
        return text.encode("utf-8", "surrogatepass")
    if kind < 0.8:
        return text.encode(chance.choice(["utf-16", "utf-8-sig", "gb18030", "utf-32"]), "replace")
    if kind < 0.9:
        return text.encode("utf-8", "surrogatepass")[: chance.randrange(len(text))]
    return chance.choice([b"", b"null", b"[]", chance.randbytes(100), nested(chance.choice([10, 3_000])).encode()])


def ask(address: tuple[str, int], head: bytes, body: bytes, *, is_half: bool) -> int | None:
    """Return the status of an answer; None where there is none."""
    with socket.create_connection(address, timeout=60) as connection:
        try:
            connection.sendall(head + body)
            if is_half:
                return None
            answer = connection.recv(4096)
        except OSError:  # the service closes a connection whose body it does not read
            return None
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else None


def odd_request(chance: random.Random) -> tuple[bytes, bytes, bool]:
    path = chance.choice(PATHS)
    method = chance.choice(["POST"] * 6 + ["GET"] * 3 + ["HEAD", "PUT", "DELETE", "BREW"])
    body = odd_body(chance, path) if method == "POST" else b""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    length = len(body) if chance.random() < 0.95 else chance.choice([0, 1, len(body) + 50])
    is_half = length > len(body) or chance.random() < 0.05
    lines += [f"Content-Length: {length}", chance.choice(["Content-Type: application/json"] * 9 + ["X: y"])]
    lines += chance.choice(
        [[], [f"X-API-Key: {KEY}"], [f"Authorization: Bearer {OTHER_KEY}"], ["Authorization: Basic %"]]
    )
    lines += chance.choice([[]] * 12 + [["Upgrade: websocket", "Connection: upgrade"]])
    head = "\r\n".join([*lines, "Accept: application/json, text/event-stream", "", ""]).encode()
    return (head[: chance.randrange(len(head))], b"", True) if chance.random() < 0.03 else (head, body, is_half)


@contextmanager
def health_is_watched(url: str) -> Iterator[list[float]]:
    """Ask /health all the time; the list has the seconds of each answer."""
    seconds: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            while not seconds or not ended.wait(0.005):
                started = time.perf_counter()
                assert http.get("/health").status_code == 200
                seconds.append(time.perf_counter() - started)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seconds
    finally:
        ended.set()
        watching.join()


@pytest.fixture(params=["open", "keys"])
def address(  # type: ignore[no-untyped-def]
    request, make_service, listen, filled: QdrantClient, tmp_path: Path
) -> str:
    settings: dict[str, Any] = {"record": tmp_path / "labels", "mcp": True, "documents": True}
    if request.param == "keys":
        (tmp_path / "keys").write_text(f"{KEY}\n{OTHER_KEY} search:corpus\n")
        settings["keys_file"] = tmp_path / "keys"
    deep = {"_node_content": "[" * 100_000, "text": "发烧"}
    filled.upsert("corpus", [models.PointStruct(id=1, vector={"pair": [1.0] * 32}, payload=deep)])
    service = make_service(aligned(), collections=("corpus",), over=filled, **settings)
    return str(listen(service))


@pytest.mark.parametrize(
    ("seed", "count"), [(1, SHORT), pytest.param(random.randrange(10**6), LONG, marks=pytest.mark.slow)]
)
def test_random_requests_are_answered_or_refused(address: str, seed: int, count: int) -> None:
    chance, url = random.Random(seed), httpx.URL(address)
    statuses: dict[int | None, int] = {}
    with health_is_watched(address) as seconds:
        for number in range(count):
            head, body, is_half = odd_request(chance)
            status = ask((url.host, url.port or 0), head, body, is_half=is_half)
            assert status not in (500, 502), (seed, number, head, body[:500])
            statuses[status] = statuses.get(status, 0) + 1
    assert {200, 400} <= statuses.keys(), statuses
    assert max(seconds) < HEALTH_SECONDS * BUSY, seed


@pytest.mark.parametrize("name", HOSTILE)
def test_no_request_keeps_others_from_being_answered(address: str, name: str) -> None:
    path, body = HOSTILE[name]
    with health_is_watched(address) as seconds, httpx.Client(base_url=address, timeout=60) as http:
        for headers in ({}, {"x-api-key": KEY}):
            headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            answer = http.post(path, content=body, headers=headers)
            assert answer.status_code < 500, answer.text
    assert max(seconds) < HEALTH_SECONDS * BUSY
