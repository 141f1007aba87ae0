"""One trial of fault injection, and the runner that kills processes at random moments."""

import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from care_qdrant.errors import Unreachable

FORKSERVER = multiprocessing.get_context("forkserver")
"""Starts a process in milliseconds, so that the moments of the kills spread over the work and not over imports."""
FORKSERVER.set_forkserver_preload(
    [
        "tests.reliability.attachment",
        "tests.reliability.following",
        "tests.reliability.ingestion",
        "tests.reliability.publication",
        "tests.reliability.switching",
    ]
)

Counts = Mapping[str, int]
Victim = Literal["client", "server", "both"]
"""Process that is killed. A client whose server is killed and comes back finishes by itself."""
GONE_SECONDS = (0.0, 3.0)
"""Range from which the time is drawn that a killed server stays away."""
NO_SERVER = 9
"""Exit code of a client that was started while its server was away."""
END_SECONDS = 300.0
"""Longest time in which a client may end by itself after its server is back."""


class Killable(Protocol):
    """A server that can be killed, and started again on what it has stored."""

    def kill(self) -> None:
        """End it at once."""

    def start(self) -> None:
        """Start it again."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One disturbed run, and what was found after it was finished."""

    scenario: str
    after_seconds: float
    """Time from the start of the run to the fault; 0 if the fault has no moment."""
    was_disturbed: bool
    """False if the run was done before the fault."""
    observed: Counts
    """Observations on the way, such as the number of points that were stored after a kill."""
    violations: Counts
    """Counts of what must not happen, by name."""

    @property
    def is_good(self) -> bool:
        """Return whether nothing was violated."""
        return not any(self.violations.values())


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run that is prepared to be killed, and the check of what it leaves."""

    work: Callable[[], object]
    """Runs in a process of its own, so it must be picklable."""
    verify: Callable[[], tuple[Counts, Counts]]
    """Looks at the database after the kill, finishes the work, and returns observations and violations."""
    start: Callable[[], object] = lambda: None
    """Called just before the work."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of kill: the processes that are killed, and how the server comes back."""

    victim: Victim = "client"
    server: Killable | None = None
    """Needed unless the victim is the client alone."""


CLIENT_KILLED = Fault()


def kill_trials(
    scenario: str, prepare: Callable[[str], Attempt], trials: int, seed: int, fault: Fault = CLIENT_KILLED
) -> Iterator[Trial]:
    """Kill runs with SIGKILL at moments that spread over the time that such a run takes, until so many were killed."""
    rng = random.Random(seed)
    # The first run also starts the server of forks.
    seconds = [_seconds(prepare(f"{seed}-timed-{number}").work) for number in range(2)][1]
    killed = number = 0
    while killed < trials:
        attempt = prepare(f"{seed}-{number}")
        moment = round(rng.uniform(0, seconds), 3)
        attempt.start()
        process = FORKSERVER.Process(target=_job, args=(attempt.work,))
        began = time.perf_counter()
        process.start()
        process.join(moment)
        was_killed = process.is_alive()
        if not was_killed:
            # Other load on the machine changes how long a run takes.
            seconds = time.perf_counter() - began
        seen, failed = {}, {}
        if fault.server is not None and was_killed:
            fault.server.kill()
            if fault.victim == "both":
                process.kill()
            time.sleep(rng.uniform(*GONE_SECONDS))
            fault.server.start()
            process.join(END_SECONDS)
            if fault.victim == "server":
                seen = {"found_no_server": int(process.exitcode == NO_SERVER)}
                failed = {"gave_up": int(process.exitcode not in (0, NO_SERVER))}
        process.kill()
        process.join()
        observed, violations = attempt.verify()
        killed, number = killed + was_killed, number + 1
        yield Trial(scenario, moment, was_killed, {**observed, **seen}, {**violations, **failed})


def _job(work: Callable[[], object]) -> None:
    """Work in a process of its own; one that finds no server when it starts ends at once, by design."""
    try:
        work()
    except Unreachable as error:
        if "no Qdrant server answers there" in str(error):
            sys.exit(NO_SERVER)
        raise


def _seconds(work: Callable[[], object]) -> float:
    process = FORKSERVER.Process(target=work)
    began = time.perf_counter()
    process.start()
    process.join()
    return time.perf_counter() - began
