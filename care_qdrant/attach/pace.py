"""Holds a loop back, for the sake of others who use the same server."""

import time
from collections.abc import Callable


class Pace:
    """Holds a loop back to a number of points a second."""

    def __init__(self, points_per_second: float | None, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._rate, self._sleep = points_per_second, sleep
        self._due = time.monotonic()

    def wait(self, points: int) -> None:
        """Wait until this many more points may be written."""
        if self._rate is None:
            return
        self._due = max(self._due, time.monotonic()) + points / self._rate
        self._sleep(max(0.0, self._due - time.monotonic()))
