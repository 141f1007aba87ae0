"""Keeps a collection attached while another pipeline goes on writing to it: one attach after the other."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from care_qdrant.attach.attach import AttachReport
from care_qdrant.errors import FolderLocked, InputError, Unreachable
from care_qdrant.store.retry import RetryPolicy

WATCHING = RetryPolicy(attempts=5)
"""Of one pass: some seconds of patience, since there is another one soon, and a signal should not wait for longer."""


@dataclass(frozen=True, slots=True)
class FailedPass:
    """A pass that did not get through; the next one goes on from there."""

    error: Unreachable | FolderLocked


def watch(
    run_pass: Callable[[], AttachReport], seconds: float, stop: threading.Event
) -> Iterator[AttachReport | FailedPass]:
    """Give what each pass did, for ever, or until ``stop`` is set.

    A server that cannot be reached and a folder that somebody else has open are given and tried again; whatever else
    goes wrong is raised, since trying again would not help: another model's vectors, a key that may not write.

    Args:
        run_pass: Opens the database, attaches and closes it, so that others can open a folder in between.
        seconds: From the end of a pass to the beginning of the next.
        stop: Ends the waiting at once; a pass that is under way is expected to look at it, too.
    """
    if seconds < 0:
        raise InputError(f"--watch is {seconds}; expected seconds, 0 or more")
    while not stop.is_set():
        try:
            yield run_pass()
        except (Unreachable, FolderLocked) as error:
            yield FailedPass(error)
        stop.wait(seconds)
