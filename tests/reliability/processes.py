"""Servers as processes of their own: the stand-in, and a real Qdrant that can be killed and started again."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import httpx

from tests.reliability.balancer import LoadBalancer
from tests.reliability.network import Network
from tests.reliability.replicas import await_settled, shard_collections, transfer_shards

BINARY = os.environ.get("QDRANT_BINARY")
"""Path of a qdrant server program; None where only the stand-in is there."""
READY_SECONDS = 180.0
NodeFault = Literal["killed", "frozen", "cut", "moved"]


@contextmanager
def standin_server(engine: Literal["local", "counting"] = "local", *, path: Path | None = None) -> Iterator[str]:
    """Run the stand-in for a Qdrant server, and yield its URL; ``counting`` stores only the ids of points."""
    options = ["--engine", engine, *([] if path is None else ["--path", str(path)])]
    command = [sys.executable, "-W", "ignore", "-m", "tests.standin", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = (process.stdout.readline() if process.stdout else "").strip()
        if not url:
            raise RuntimeError("the stand-in server did not start; run this in the root of a care-qdrant checkout")
        try:
            yield url
        finally:
            process.kill()


class QdrantServer:
    """A real server on loopback with ports and storage of its own, which survive `kill`; use it in a ``with`` block."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        settings: dict[str, str] | None = None,
        first: "QdrantServer | None" = None,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """Choose ports; ``settings`` are environment variables, ``first`` a node of the cluster that this one joins."""
        self.folder, self._host, self._command = folder, host, [*prefix, binary]
        self.port, self.grpc_port, p2p_port = _free_ports()
        self._p2p_url = f"http://{host}:{p2p_port}"
        if (settings or {}).get("QDRANT__CLUSTER__ENABLED"):
            self._command += ["--bootstrap", first._p2p_url] if first else []
            self._command += ["--uri", self._p2p_url]
        self._environment = os.environ | {
            "QDRANT__SERVICE__HOST": host,
            "QDRANT__SERVICE__HTTP_PORT": str(self.port),
            "QDRANT__SERVICE__GRPC_PORT": str(self.grpc_port),
            "QDRANT__STORAGE__STORAGE_PATH": str(folder / "storage"),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(folder / "snapshots"),
            "QDRANT__CLUSTER__P2P__PORT": str(p2p_port),
            "QDRANT__TELEMETRY_DISABLED": "true",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the HTTP address."""
        return f"http://{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        """Return the id of the process, which runs."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    def with_disk(self, mib: int) -> Self:
        """Mount a disk of this size for a server that is not started yet: a file system in memory (Linux)."""
        (storage := self.folder / "storage").mkdir()
        mount = f'mount -t tmpfs -o size={mib}m tmpfs "$0" && exec "$@"'
        self._command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(storage), *self._command]
        return self

    @property
    def disk(self) -> Path:
        """Return the disk of `with_disk` as this process sees it, while the server runs."""
        return Path(f"/proc/{self.pid}/root{self.folder / 'storage'}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server on its storage, and wait until it answers."""
        with (self.folder / "qdrant.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=self.folder, stdout=log, stderr=log
            )
        until = time.monotonic() + READY_SECONDS
        while True:
            try:
                httpx.get(f"{self.url}/healthz").raise_for_status()
                return
            except httpx.HTTPError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "qdrant.log").read_text(errors="replace")[-3_000:]) from None
                time.sleep(0.05)

    def signal(self, number: int) -> None:
        """Send a signal to the server, which runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the server as a power cut would, as far as the operating system allows."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class QdrantCluster:
    """Three real servers behind a load balancer, which hold each shard twice; `kill` disturbs one of them, in turn."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        *,
        fault: NodeFault = "killed",
        network: Network | None = None,
        write_consistency: int = 1,
    ) -> None:
        """Choose ports; ``fault`` is what `kill` does to a node, in turn, and ``network`` lets it be cut off."""
        settings = {
            "QDRANT__CLUSTER__ENABLED": "true",
            "QDRANT__STORAGE__COLLECTION__SHARD_NUMBER": "3",
            "QDRANT__STORAGE__COLLECTION__REPLICATION_FACTOR": "2",
            "QDRANT__STORAGE__COLLECTION__WRITE_CONSISTENCY_FACTOR": str(write_consistency),
        }
        self.nodes: list[QdrantServer] = []
        for number in range(3):
            (place := folder / f"node-{number}").mkdir()
            first = self.nodes[0] if self.nodes else None
            where: dict[str, Any] = {}
            if network is not None:
                where = {"host": network.address(number), "prefix": network.prefix(number)}
            self.nodes.append(QdrantServer(binary, place, settings, first, **where))
        self._balancer = LoadBalancer(self.urls)
        self._fault, self._network = fault, network
        self._killed = -1
        self.transfers = 0
        """Transfers of shards that were started so far."""
        self._transferred: set[str] = set()

    @property
    def urls(self) -> list[str]:
        """Return the HTTP address of each node."""
        return [node.url for node in self.nodes]

    @property
    def url(self) -> str:
        """Return the HTTP address of the load balancer in front of the nodes."""
        return self._balancer.url

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        self._balancer.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._balancer.__exit__()
        for node in self.nodes:
            node.kill()

    def kill(self) -> None:
        """Disturb the next node."""
        self._killed = (self._killed + 1) % len(self.nodes)
        node = self.nodes[self._killed]
        if self._fault == "moved":
            new = set(shard_collections(node.url)) - self._transferred
            self.transfers += sum(transfer_shards(node.url, collection) for collection in sorted(new))
            self._transferred |= new
        elif self._network is not None and self._fault == "cut":
            self._network.cut(self._killed)
        elif self._fault == "frozen":
            node.signal(signal.SIGSTOP)
        else:
            node.kill()

    def start(self) -> None:
        """Let the node that was disturbed go on, or wait until no shard is under way."""
        node = self.nodes[self._killed]
        if self._fault == "moved":
            await_settled(self.urls)
        elif self._network is not None and self._fault == "cut":
            self._network.mend(self._killed)
        elif self._fault == "frozen":
            node.signal(signal.SIGCONT)
        else:
            node.start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _free_ports() -> tuple[int, int, int]:
    """Return three neighbouring free ports: the second is where clients look for gRPC."""
    while True:
        with ExitStack() as held:
            try:
                (one := held.enter_context(socket.socket())).bind(("127.0.0.1", 0))
                port: int = one.getsockname()[1]
                for further in (1, 2):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port + further))
            except OSError:
                continue
            return port, port + 1, port + 2
