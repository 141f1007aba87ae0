"""Peak memory of a process, and how much of it is private."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
POLL_SECONDS = 0.05


@dataclass(slots=True)
class Peak:
    """Peak values while the process was watched."""

    private_mib: float = 0.0
    """Anonymous memory, without the pages of mapped files, which the system reclaims when it needs them."""
    resident_mib: float = 0.0
    """All resident memory."""


@contextmanager
def watched_memory() -> Iterator[Peak]:
    """Sample the memory of this process many times per second; needs Linux."""
    peak, done = Peak(), threading.Event()
    _look(peak)

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            _look(peak)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        _look(peak)


def _look(peak: Peak) -> None:
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    peak.private_mib = max(peak.private_mib, _mib(fields["RssAnon"]))
    peak.resident_mib = max(peak.resident_mib, _mib(fields["VmHWM"]))


def _mib(field: str) -> float:
    return round(int(field.split()[0]) / 1024, 1)
