"""The progress bars of this package, on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from care_qdrant.ingestion.report import Progress


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[Progress], None]]:
    """Return a function that shows how far an ingestion is: documents, tokens a second, time to go."""
    with tqdm(desc=label, unit="doc", file=sys.stderr, dynamic_ncols=True, smoothing=0.05) as bar:

        def show(progress: Progress) -> None:
            bar.total = round(progress.documents / progress.share_read) if progress.share_read else None
            speed = f"{progress.tokens_per_second:,.0f} tokens/s"
            bar.set_postfix_str(f"{progress.encoded:,} encoded, {speed}", refresh=False)
            bar.update(progress.documents - bar.n)

        yield show


@contextmanager
def points_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Return a function that shows how many points, and of how many, are dealt with."""
    with tqdm(desc=label, unit="point", file=sys.stderr, dynamic_ncols=True) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


@contextmanager
def parts_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Return a function that shows how much of each part of some work is done, one bar after the other."""
    shown = ""
    with tqdm(file=sys.stderr, dynamic_ncols=True) as bar:

        def show(part: str, done: int, total: int) -> None:
            nonlocal shown
            if part != shown:
                shown = part
                bar.reset(total)
                bar.set_description(part, refresh=False)
            bar.update(done - bar.n)

        yield show
