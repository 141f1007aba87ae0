"""Runs in processes of their own that are killed at random moments of the time that they take."""

import multiprocessing
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
"""Starts a process in milliseconds, so that moments spread over the work and not over imports."""


@dataclass(slots=True)
class Killer:
    """Sends SIGKILL to runs of one kind, at moments that spread over the time that such a run takes."""

    chance: random.Random
    seconds: float
    """Of a run, as last seen: other work on the machine makes it longer and shorter."""
    moment: float = 0.0
    """The last that was drawn."""

    def kill(self, work: Callable[..., object], *arguments: Any) -> bool:
        """Start a run and kill it; False if it was done before its moment came."""
        self.moment = round(self.chance.uniform(0, self.seconds), 3)
        process = FORKS.Process(target=work, args=arguments)
        start = time.perf_counter()
        process.start()
        process.join(self.moment)
        was_killed = process.is_alive()
        if not was_killed:
            self.seconds = time.perf_counter() - start
        process.kill()
        process.join()
        return was_killed


def time_run(work: Callable[..., object], *arguments: Any) -> float:
    """Give the seconds that a run takes."""
    process = FORKS.Process(target=work, args=arguments)
    start = time.perf_counter()
    process.start()
    process.join()
    return time.perf_counter() - start
