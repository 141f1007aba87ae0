"""A command that runs pass after pass until a signal ends it."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from care_qdrant.console.text import echo
from care_qdrant.errors import FolderLocked, NoCollection, Rejected, TooFewDocuments, Unreachable
from care_qdrant.qdrant.retry import is_collection_gone

Pass = TypeVar("Pass")
_LONGEST_SLEEP = 0.2
"""Most seconds from a signal between two passes to the end of the command."""


def passes(run_pass: Callable[[threading.Event], Pass], seconds: float) -> Iterator[Pass]:
    """Yield what each pass did; the first signal ends it after the current batch, a second one at once.

    A pass fails where a server cannot be reached, where another process has the folder open, where there are too few
    documents at the moment, or where a collection that an earlier pass found is being made again: the next one tries
    again. Other errors are raised, since trying again would not help.
    """
    stop, was_found = threading.Event(), False

    def end(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    while not stop.is_set():
        try:
            done = run_pass(stop)
        except (Unreachable, FolderLocked, TooFewDocuments, NoCollection, Rejected) as error:
            is_gone = isinstance(error, NoCollection) or is_collection_gone(error)
            is_final = not was_found if is_gone else isinstance(error, Rejected)
            if is_final:
                raise
            echo(f"this pass failed, the next one continues from there: {error}", err=True)
        else:
            was_found = True
            yield done
        # Not `stop.wait`: a handler that sets the event meanwhile would wait for the lock of its own thread, for ever.
        begun = time.monotonic()
        while not stop.is_set() and (left := begun + seconds - time.monotonic()) > 0:
            time.sleep(min(left, _LONGEST_SLEEP))
