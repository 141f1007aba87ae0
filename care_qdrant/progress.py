"""Progress of a long run on stderr: a bar on a terminal, one line a minute anywhere else."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

REPAINT_SECONDS = 0.5
LINE_SECONDS = 60.0
SHORTEST_LABEL = 4
"""Number of characters to which a label is cut at most, where a narrow terminal has no room for it."""
_FORMAT = "{desc}: {percentage:3.0f}%|{bar:6}| {n_fmt}/{total_fmt} {verb} [{elapsed}{postfix}]"
_FORMAT_WITHOUT_TOTAL = "{desc}: {n_fmt} {verb} [{elapsed}{postfix}]"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a run in progress."""

    documents: int
    """Documents that were read and compared."""
    stored: int
    """Chunks that Qdrant acknowledged, or had already."""
    encoded: int
    rejected: int
    tokens_per_second: float
    documents_per_second: float
    padding: float
    idle_fraction: float
    """Share of the time in which the encoder had nothing to do, in [0, 1]."""
    total: int | None
    """Chunks of the whole run, extrapolated from what was read; None where the length of the corpus is not known."""
    seconds_left: float | None
    """Time to encode the rest at the encoder's rate so far."""
    share_read: float | None
    """Fraction of the corpus that was read, in [0, 1]; None where its length is not known."""


@contextmanager
def progress_bar(label: str, verb: str = "stored") -> Iterator[Callable[[Progress], None]]:
    """Return a function that shows how far an ingestion is: points stored, the encoder's rates, time to go.

    The time to go follows from the encoder's rate and is counted down between two calls.
    """
    with painted_bar(label, verb) as paint:

        def show(progress: Progress) -> None:
            notes = [f"{progress.rejected:,} rejected"] if progress.rejected else []
            if progress.tokens_per_second:
                notes += [
                    f"{progress.tokens_per_second:,.0f} tokens/s",
                    f"{progress.documents_per_second:,.1f} documents/s",
                ]
                notes += [f"padding {progress.padding:.2f}", f"idle {progress.idle_fraction:.0%}"]
            paint(progress.stored, progress.total, progress.seconds_left, notes)

        yield show


@contextmanager
def points_bar(label: str, verb: str = "stored") -> Iterator[Callable[[int, int], None]]:
    """Return a function that shows how many points of how many are done; a total of 0 is an unknown one."""
    with painted_bar(label, verb) as paint:
        start, before = time.monotonic(), None

        def show(done: int, total: int) -> None:
            nonlocal before
            before = done if before is None else before
            new = done - before
            left = (time.monotonic() - start) * (total - done) / new if new > 0 and total else None
            paint(done, total or None, left, [])

        yield show


Paint = Callable[[int, int | None, float | None, list[str]], None]
"""Takes what is done, the total, the seconds left, and notes: the first ones are shown where not all fit."""


@contextmanager
def painted_bar(label: str, verb: str) -> Iterator[Paint]:
    """Return a function that keeps the state of a bar, which a timer paints: a line a minute without a terminal."""
    state = _State(verb)
    stopped = threading.Event()
    # None: only on a terminal. tqdm reads its variable only where nothing is given.
    disable = True if os.environ.get("TQDM_DISABLE", "0") not in ("", "0") else None
    with _open_bar(desc=label, disable=disable, bar_format=_FORMAT_WITHOUT_TOTAL.replace("{verb}", verb)) as bar:

        def repaint() -> None:
            while not stopped.wait(LINE_SECONDS if bar.disable else REPAINT_SECONDS):
                state.show(label, bar)

        ticker = threading.Thread(target=repaint, name="progress", daemon=True)
        ticker.start()
        try:
            yield state.set
        finally:
            stopped.set()
            ticker.join()
            if not bar.disable:
                state.show(label, bar)


def _open_bar(**options: Any) -> "tqdm[Any]":
    """Return a bar on stderr; a terminal without a size, as job runners have, counts as one of 80 columns."""
    if sys.stderr.isatty() and 0 in os.get_terminal_size(sys.stderr.fileno()):
        return tqdm(file=sys.stderr, ncols=80, nrows=24, **options)
    return tqdm(file=sys.stderr, dynamic_ncols=True, **options)


class _State:
    """The last report, and its time."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._lock = threading.Lock()
        self.set(0, None, None, [])

    def set(self, done: int, total: int | None, seconds_left: float | None, notes: list[str]) -> None:
        with self._lock:
            self._done, self._total, self._left, self._notes = done, total, seconds_left, notes
            self._since = time.monotonic()

    def show(self, label: str, bar: "tqdm[Any]") -> None:
        with self._lock:
            done, total, notes = self._done, self._total, list(self._notes)
            left = None if self._left is None else max(0.0, self._left - (time.monotonic() - self._since))
        if left is not None and (total is None or done < total):
            notes.insert(0, f"{duration(left)} left")
        if bar.disable:
            share = f" of {total:,} ({done / total:.0%})" if total else ""
            counted = f"{done:,}{share} {self._verb}"
            logger.info("%s: %s", label, ", ".join([counted, *notes]))
            return
        bar.total, bar.n = total, done
        bar.bar_format = (_FORMAT if total else _FORMAT_WITHOUT_TOTAL).replace("{verb}", self._verb)
        bar.set_postfix_str(", ".join(notes), refresh=False)
        bar.set_description_str(label, refresh=False)
        # A line that is too long is cut, and has lost its end. The first note, the time to go, outlives the label.
        while len(notes) > 1 and not str(bar).endswith("]"):
            notes.pop()
            bar.set_postfix_str(", ".join(notes), refresh=False)
        while len(label) > SHORTEST_LABEL and not str(bar).endswith("]"):
            label = label[:-2] + "…"
            bar.set_description_str(label, refresh=False)
        bar.refresh()


def duration(seconds: float) -> str:
    """Return a time in the two largest units that say something: ``45 s``, ``12 min``, ``7 h 30 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


@contextmanager
def parts_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Return a function that shows how much of each part of some work is done, one bar after the other."""
    shown, paint = "", None
    with ExitStack() as bar:

        def show(part: str, done: int, total: int) -> None:
            nonlocal shown, paint
            if paint is None or part != shown:
                bar.close()
                shown, paint = part, bar.enter_context(points_bar(part, "done"))
            paint(done, total)

        yield show


OnProgress = Callable[[int, int], None]
"""Called with the number of points that are done and the number of all points."""
