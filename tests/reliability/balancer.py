"""A TCP load balancer in front of the nodes of a cluster, which knows by ``/readyz`` which of them answer.

By ``/healthz``, a node that has just come back would be asked at once, and say of a new collection that there is none.
"""

import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

import httpx

CHECK_SECONDS = 0.5
"""Pause between two looks at the health of a node."""
ANSWER_SECONDS = 2.0
"""Longest time that a healthy node takes to answer."""
_CHUNK_BYTES = 65_536


class LoadBalancer:
    """Passes each connection on to the next healthy node; use it in a ``with`` block.

    Connections to a node that no longer answers are closed, as HAProxy does by ``on-marked-down shutdown-sessions``.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        """Choose a port; nothing is connected."""
        self._urls = list(urls)
        self._turn = itertools.count()
        self._healthy = dict.fromkeys(self._urls, True)
        self._open: dict[str, set[socket.socket]] = {url: set() for url in self._urls}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    @property
    def url(self) -> str:
        """Return the HTTP address."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        for work in (self._accept, *(lambda url=url: self._watch(url) for url in self._urls)):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._listener.close()
        for url in self._urls:
            self._close_all(url)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            for url in self._in_turn():
                parts = urlsplit(url)
                try:
                    node = socket.create_connection((parts.hostname or "", parts.port or 0), ANSWER_SECONDS)
                except OSError:
                    continue
                node.settimeout(None)
                with node:
                    self._pass_on(url, client, node)
                return

    def _in_turn(self) -> list[str]:
        first = next(self._turn)
        urls = [self._urls[(first + step) % len(self._urls)] for step in range(len(self._urls))]
        return [url for url in urls if self._healthy[url]] or urls

    def _pass_on(self, url: str, client: socket.socket, node: socket.socket) -> None:
        with self._lock:
            self._open[url] |= {client, node}
        back = threading.Thread(target=_copy, args=(node, client), daemon=True)
        back.start()
        _copy(client, node)
        back.join()
        with self._lock:
            self._open[url] -= {client, node}

    def _watch(self, url: str) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            try:
                is_healthy = httpx.get(f"{url}/readyz", timeout=ANSWER_SECONDS).is_success
            except httpx.HTTPError:
                is_healthy = False
            self._healthy[url] = is_healthy
            if not is_healthy:
                self._close_all(url)

    def _close_all(self, url: str) -> None:
        with self._lock:
            for connection in self._open[url]:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what one side sends until it ends, and then end the other."""
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
