"""Kills ``care promote`` and ``care publish`` at random moments and checks that one more run makes everything right.

After the kill, each point that was copied has to be whole, and readers of the alias have to find one whole version.
After one more run, the copy has to be equal to its source, and no version may be left over.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qdrant_client import QdrantClient

from care_benchmarks.deployment.sample import Contents, differing, make_collection, read_contents, write_points
from care_benchmarks.killing import FORKS, Killer, time_run
from care_qdrant.cli import care
from care_qdrant.store.connection import open_client

Case = Literal["promote", "publish on a server", "publish in a folder"]
CASES: tuple[Case, ...] = ("promote", "publish on a server", "publish in a folder")
FORKS.set_forkserver_preload(
    [__name__, "care_qdrant.publishing.promote", "care_qdrant.publishing.publish", "care_qdrant.progress"]
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One killed run and the run that finished it."""

    case: Case
    killed_after_seconds: float
    was_killed: bool
    """False where it was done before its time came."""
    copied: int
    """Points of the unfinished copy after the kill."""
    torn: int
    """Of those: points that were not whole."""
    unseen: int
    """Points of the version behind the alias that its readers missed, or saw otherwise."""
    wrong: int
    """Points that are missing, too many or different after one more run."""
    leftovers: list[str]
    """Collections that should not be there after one more run."""

    @property
    def is_good(self) -> bool:
        """Say whether nothing was lost, torn, wrong or left over."""
        return not (self.torn or self.unseen or self.wrong or self.leftovers)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trial happens."""

    case: Case
    folder: Path
    url: str
    name: str
    """Of the source; ``NAME-live`` is the alias of a publication."""
    first: Contents
    """Of the first version that was published; of a promotion, of the source."""

    @property
    def arguments(self) -> list[str]:
        """Give the command under attack."""
        if self.case == "promote":
            return ["promote", "docs", "--path", str(self.folder), "--url", self.url, "--to", self.name]
        where = ["--url", self.url] if self.case == "publish on a server" else ["--path", str(self.folder)]
        return ["publish", self.name, "--as", f"{self.name}-live", *where]

    def open(self) -> AbstractContextManager[QdrantClient]:
        """Open the database that is written to."""
        return open_client(path=self.folder) if self.case == "publish in a folder" else open_client(url=self.url)


def run_trials(case: Case, trials: int, points: int, scratch: Path, url: str, seed: int) -> Iterator[Trial]:
    """Give one trial after the other; the moments spread over the time that a run takes.

    Args:
        case: What to kill.
        trials: How many runs to kill; one that was done before its moment came is given, too, and not counted.
        points: Of each source.
        scratch: An empty folder.
        url: Of a server.
        seed: Of the moments.
    """
    rng = random.Random(seed)
    # The first run had to start the server of forks.
    timed = [_prepare(case, points, scratch, url, f"{case.split()[-1]}-timed-{run}").arguments for run in range(2)]
    runs = Killer(rng, [time_run(_run, arguments) for arguments in timed][1])
    killed = number = 0
    while killed < trials:
        trial = _try(_prepare(case, points, scratch, url, f"{case.split()[-1]}-{number}"), runs)
        killed, number = killed + trial.was_killed, number + 1
        yield trial


def _prepare(case: Case, points: int, scratch: Path, url: str, name: str) -> Place:
    """Make the source; of a publication, also a first version and news for the second."""
    folder = scratch / ("source" if case == "promote" else name)
    if case == "promote":
        with open_client(path=folder) as client:
            if not client.collection_exists("docs"):
                make_collection(client, "docs", points)
            first = read_contents(client, "docs")
        with open_client(url=url) as client:
            make_collection(client, name, 0)
        return Place(case, folder, url, name, first)
    place = Place(case, folder, url, name, {})
    with place.open() as client:
        make_collection(client, name, points)
    _run(place.arguments)
    with place.open() as client:
        first = read_contents(client, name)
        write_points(client, name, range(points // 4), seed=1)
    return replace(place, first=first)


def _try(place: Place, runs: Killer) -> Trial:
    was_killed = runs.kill(_run, place.arguments)
    with place.open() as client:
        look = _look_at_promotion if place.case == "promote" else _look_at_publication
        copied, torn, unseen, is_done = look(client, place)
    if not is_done:
        _run(place.arguments)
    with place.open() as client:
        wrong, leftovers = _compare(client, place)
    return Trial(place.case, runs.moment, was_killed, copied, torn, unseen, wrong, leftovers)


def _run(arguments: Sequence[str]) -> None:
    """Run a command without its output."""
    with Path(os.devnull).open("w") as nowhere:
        saved = os.dup(1), os.dup(2)
        os.dup2(nowhere.fileno(), 1), os.dup2(nowhere.fileno(), 2)
        try:
            care.main(list(arguments), standalone_mode=False)
        finally:
            os.dup2(saved[0], 1), os.dup2(saved[1], 2)


def _look_at_promotion(client: QdrantClient, place: Place) -> tuple[int, int, int, bool]:
    """Give, right after a kill: points of the copy, torn ones, those that readers miss, and whether it is over."""
    copy = read_contents(client, place.name)
    return len(copy), differing(copy, place.first), 0, False


def _look_at_publication(client: QdrantClient, place: Place) -> tuple[int, int, int, bool]:
    live = f"{place.name}-live"
    wanted, copy = read_contents(client, place.name), read_contents(client, f"{live}_v2")
    behind = {alias.alias_name: alias.collection_name for alias in client.get_aliases().aliases}.get(live)
    is_switched = behind == f"{live}_v2"
    seen = read_contents(client, live)
    return len(copy), differing(copy, wanted), _distance(seen, wanted if is_switched else place.first), is_switched


def _compare(client: QdrantClient, place: Place) -> tuple[int, list[str]]:
    """Give, at the end: points that are wrong, and collections that should not be there."""
    if place.case == "promote":
        return _distance(read_contents(client, place.name), place.first), []
    live = f"{place.name}-live"
    named = {each.name for each in client.get_collections().collections if each.name.startswith(live)}
    wrong = _distance(read_contents(client, live), read_contents(client, place.name))
    return wrong, sorted(named - {f"{live}_v1", f"{live}_v2"})


def _distance(found: Contents, wanted: Contents) -> int:
    return differing(found, wanted) + len(wanted.keys() - found.keys())
