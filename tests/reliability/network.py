"""Hosts in network namespaces on one machine, of which each can be cut off; needs root and ``ip`` of iproute2."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_SUBNET = "10.213.77"


def may_build() -> bool:
    """Return whether this process may make network namespaces."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    probe = f"care-{os.getpid()}-p"
    if subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True).returncode:
        return False
    _ip("netns", "delete", probe)
    return True


class Network:
    """A bridge with some hosts, one namespace each; this process reaches all of them. Use it in a ``with`` block."""

    def __init__(self, hosts: int) -> None:
        """Choose names; nothing is made."""
        self._bridge = f"care{os.getpid()}"
        self._hosts = range(hosts)

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{_SUBNET}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for host in self._hosts:
            name, port = self._name(host), self._port(host)
            _ip("netns", "add", name)
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", port, "master", self._bridge, "up")
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for host in self._hosts:
            _ip("netns", "delete", self._name(host))
        _ip("link", "delete", self._bridge)

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"{_SUBNET}.{host + 2}"

    def prefix(self, host: int) -> Sequence[str]:
        """Return what goes in front of a command that runs on a host."""
        return ["ip", "netns", "exec", self._name(host)]

    def namespace(self, host: int) -> Path:
        """Return the file by which a process enters a host."""
        return Path("/var/run/netns") / self._name(host)

    def cut(self, host: int) -> None:
        """Take a host off the network: what is sent to it and by it is lost, and nobody is told."""
        _ip("link", "set", self._port(host), "down")

    def mend(self, host: int) -> None:
        """Put a host back on the network."""
        _ip("link", "set", self._port(host), "up")

    def _name(self, host: int) -> str:
        return f"care-{os.getpid()}-{host}"

    def _port(self, host: int) -> str:
        return f"care{os.getpid()}p{host}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
