"""Renew objects in a forked child: locks that a thread of its parent held, and pools, whose threads stay behind.

Web servers fork their workers after the application was loaded (gunicorn ``--preload``, uWSGI, ``multiprocessing``).
A child gets locks as they are at that moment and no threads: a lock that is held is never released there, and a pool
takes work that no thread does.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_renewals: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def renew_in_child(thing: T, renew: Callable[[T], None]) -> None:
    """Call a function with an object in each child that is forked while the object exists.

    Args:
        thing: Hashable, by its identity where it changes.
        renew: Must not refer to the object, which would then never be collected.
    """
    _renewals[thing] = renew


class ForkLock:
    """A reentrant lock that is free in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renew_in_child(self, ForkLock._renew)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.RLock()


class ForkPool:
    """Threads that start with the first call; a forked child has its own."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._renew()
        renew_in_child(self, ForkPool._renew)

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The pool of this process."""
        return self._executor

    def _renew(self) -> None:
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)


def _after_fork_in_child() -> None:
    for thing, renew in list(_renewals.items()):
        renew(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
