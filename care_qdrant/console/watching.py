"""A command that runs pass after pass until a signal ends it."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from care_qdrant.console.text import echo
from care_qdrant.errors import FolderLocked, TooFewDocuments, Unreachable

Pass = TypeVar("Pass")


def passes(run_pass: Callable[[threading.Event], Pass], seconds: float) -> Iterator[Pass]:
    """Yield what each pass did; the first signal ends it after the current batch, a second one at once.

    A pass fails where a server cannot be reached, where another process has the folder open, or where there are too few
    documents at the moment: the next one tries again. Other errors are raised, since trying again would not help.
    """
    stop = threading.Event()

    def end(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    while not stop.is_set():
        try:
            done = run_pass(stop)
        except (Unreachable, FolderLocked, TooFewDocuments) as error:
            echo(f"this pass failed, the next one continues from there: {error}", err=True)
        else:
            yield done
        stop.wait(seconds)
