"""A command that runs pass after pass until a signal ends it."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import click

Pass = TypeVar("Pass")


def passes(run_pass: Callable[[threading.Event], Pass], seconds: float) -> Iterator[Pass]:
    """Yield what each pass did; the first signal ends it after the current batch, a second one at once."""
    from care_qdrant.index.attach import FailedPass, watch

    stop = threading.Event()

    def end(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    for done in watch(lambda: run_pass(stop), seconds, stop):
        if isinstance(done, FailedPass):
            click.echo(f"this pass failed, the next one goes on from there: {done.error}", err=True)
        else:
            yield done
