"""Connections of clients that send no request: closed after a while, and first where there are too many."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.serve import connections
from care_qdrant.serve.app import Service
from care_qdrant.serve.connections import MOST_PIPELINED, WithoutUpgrade, bounded_protocol, most_connections
from tests.serve.conftest import asked, pair
from tests.serve.test_admission import GatedEncoder


def connected(address: str) -> socket.socket:
    url = httpx.URL(address)
    return socket.create_connection((url.host, url.port or 0), timeout=20)


def answered(connection: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(4096)
    return answer


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET /health HTT", b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_connection_without_a_whole_head_is_closed(
    make_service: Callable[..., Service], listen: Any, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    address = listen(make_service())
    with connected(address) as silent, connected(address) as used:
        silent.sendall(said)
        request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        used.sendall(request)
        assert answered(used).startswith(b"HTTP/1.1 200")
        assert is_closed(silent)
        used.sendall(request)  # it waits for its next request as long as any other
        assert answered(used).startswith(b"HTTP/1.1 200")
        used.sendall(b"GET /he")
        assert is_closed(used)


@pytest.mark.parametrize("said", [b"GET /health HTTP/1.1\r\nX: ", b"GET /"])
def test_a_head_without_end_is_cut_off(make_service: Callable[..., Service], listen: Any, said: bytes) -> None:
    with connected(listen(make_service())) as endless:
        sent = 0
        with pytest.raises(OSError):  # a broken pipe or a reset
            for _ in range(1_000):
                sent += endless.send(said + b"a" * 10_000)
                said = b""
        assert sent < 8 * 2**20, "what stands in the buffers of the system, and no more"


def test_a_head_that_is_too_large_is_answered(make_service: Callable[..., Service], listen: Any) -> None:
    with connected(listen(make_service())) as whole:
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nCookie: "
        whole.sendall(head.ljust(connections.HEAD_BYTES + 1, b"a"))
        answer = b"".join(iter(lambda: whole.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"65536 bytes" in answer


@pytest.mark.parametrize(("path", "zeros"), [("/v1/embeddings", 5_000), ("/inference", 5_000), ("/search", 30_000)])
def test_a_length_with_zeros_before_it_is_that_length(
    make_service: Callable[..., Service], listen: Any, path: str, zeros: int
) -> None:
    for length in (b"2", b"9000000"):
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % path.encode()
        with connected(listen(make_service())) as client:
            client.sendall(head + b"Content-Length: " + b"0" * zeros + length + b"\r\n\r\n{}")
            assert answered(client).startswith(b"HTTP/1.1 400" if length == b"2" else b"HTTP/1.1 413")


def test_beyond_the_limit_the_connection_that_waits_longest_is_closed(
    make_service: Callable[..., Service], listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.serve.conftest.bounded_protocol", lambda _: bounded_protocol(4))
    gated = GatedEncoder()
    address = listen(make_service(pair(query=gated)))
    answers: list[int] = []

    def ask() -> None:
        answers.append(httpx.post(f"{address}/inference", json=asked("发烧"), timeout=60).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    assert gated.entered.wait(20)
    silent = [connected(address) for _ in range(20)]
    assert httpx.get(f"{address}/health", timeout=20).status_code == 200
    gated.gate.set()
    asking.join()
    assert answers == [200], "a request that is being answered keeps its connection"
    for each in silent:
        each.close()


def test_a_client_that_does_not_read_its_answers_keeps_no_place_from_others(
    make_service: Callable[..., Service], listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.serve.conftest.bounded_protocol", lambda _: bounded_protocol(2))
    body = json.dumps({"input": ["发烧"] * 1024, "model": "pair"}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    address = listen(make_service())
    statuses: list[int] = []
    with ExitStack() as stack:
        for _ in range(2):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", httpx.URL(address).port))
            deaf.sendall(request * MOST_PIPELINED)  # whose answers the buffers of the system do not hold
        until = time.monotonic() + 30
        while not statuses and time.monotonic() < until:
            try:
                statuses.append(httpx.get(f"{address}/health", timeout=20).status_code)
            except httpx.TransportError:  # as long as the others still have places
                time.sleep(0.05)
    assert statuses == [200]


@pytest.mark.parametrize("waiting", [1, MOST_PIPELINED - 1, MOST_PIPELINED, 20_000])
def test_few_requests_may_wait_behind_another_one(
    make_service: Callable[..., Service], listen: Any, waiting: int
) -> None:
    gated = GatedEncoder()
    body = json.dumps(asked("发烧")).encode()
    first = b"POST /inference HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    first += b"Content-Length: %d\r\n\r\n" % len(body) + body
    with connected(listen(make_service(pair(query=gated)))) as client:
        client.sendall(first + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * waiting)
        if waiting > MOST_PIPELINED:  # while the first one still waits for its answer
            assert client.recv(4096).startswith(b"HTTP/1.1 400")
        assert gated.entered.wait(20)
        gated.gate.set()
        if waiting <= MOST_PIPELINED:
            answers = b""
            while answers.count(b"HTTP/1.1 200 OK") < waiting + 1:
                part = client.recv(4096)
                assert part, answers
                answers += part


def test_a_worker_keeps_files_for_other_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (150, 150))
    assert most_connections(4_096) < 150


def test_an_offer_of_another_protocol_is_ignored_with_no_loss_of_the_body(
    make_service: Callable[..., Service], listen: Any
) -> None:
    body = json.dumps({"input": "发烧", "model": "pair"}, indent=2).encode()
    parts = [
        b"POST /v1/embeddings HTTP/1.1\r\n",
        b"Host: localhost\r\n",
        b"Connection: Upgrade, HTTP2-Settings\r\n",
        b"Content-Type: application/json\r\n",
        b"Content-Length: %d\r\n" % len(body),
        b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
        *(b"%c" % letter for letter in b"uPGRADE: h2c\r\n\r\n"),
        body[:4],  # ends with the blanks before its first name
        body[4:],
    ]
    with connected(listen(make_service())) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(len(parts)):  # each time the rest of the request is in another packet
            for part in (parts[:cut], parts[cut:-1], parts[max(cut, len(parts) - 1) :]):
                client.sendall(b"".join(part))
                time.sleep(0.01)
            assert answered(client).startswith(b"HTTP/1.1 200"), cut


PIECES = [
    b"Upgrade",
    b"uP",
    b"GRADE",
    b"X-",
    b": h2c",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join), st.lists(st.integers(0, 60)))
def test_a_head_is_read_the_same_in_any_packets(sent: bytes, cuts: list[int]) -> None:
    whole, in_packets, parsed = WithoutUpgrade(), WithoutUpgrade(), b""
    for start, end in pairwise([0, *sorted(cuts), len(sent)]):
        packet = sent[start:end]
        parsed += packet if b"\r\n\r\n" in parsed else in_packets(packet)  # a body is parsed as it is
    expected = whole(sent)
    assert expected.startswith(parsed)
    if b"\r\n\r\n" in sent:
        assert parsed == expected, "nothing is held back once the head has ended"
    head = expected.partition(b"\r\n\r\n")[0]
    assert not any(line.lower().startswith(b"upgrade:") for line in head.split(b"\n")[1:])
