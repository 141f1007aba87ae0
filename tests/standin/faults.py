"""The faults that a stand-in can be told to make."""

import re
import threading
from dataclasses import dataclass
from typing import Literal

Kind = Literal["500", "429", "timeout", "drop", "reset", "wait_timeout", "yellow"]
"""The first five give no answer that says so, of which ``drop`` alone is applied; ``yellow`` is a busy optimizer."""


@dataclass
class Fault:
    """A fault: the wrong answer, the requests that get it, and how often."""

    kind: Kind
    times: int
    method: str
    path: str
    skip: int
    seconds: float
    """Seconds of Retry-After for 429, of silence for timeout."""

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and re.search(self.path, path) is not None


class Faults:
    """The pending faults, oldest first; safe to add to while requests come in."""

    def __init__(self) -> None:
        self._pending: list[Fault] = []
        self._lock = threading.Lock()

    def add(
        self,
        kind: Kind,
        *,
        times: int = 1,
        method: str = "",
        path: str = "",
        skip: int = 0,
        seconds: float = 1.0,
    ) -> Fault:
        """Queue a fault. ``method`` "" is any; ``path`` is a regular expression searched in the path."""
        fault = Fault(kind, times, method, path, skip, seconds)
        with self._lock:
            self._pending.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._pending.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault for this request, and count it."""
        with self._lock:
            for fault in self._pending:
                if not fault.matches(method, path):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None
