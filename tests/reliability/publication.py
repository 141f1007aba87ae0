"""``care promote`` and ``care publish`` that are killed: readers see one whole version, one more run ends it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from click.testing import CliRunner

from care_qdrant.cli import care
from care_qdrant.qdrant.connection import open_client
from tests.databases import behind
from tests.reliability.ingestion import Target
from tests.reliability.sample_collection import (
    Contents,
    differing,
    distance,
    make_collection,
    read_contents,
    write_points,
)
from tests.reliability.trials import CLIENT_KILLED, Attempt, Counts, Fault, Trial, kill_trials

Case = Literal["promote", "publish on a server", "publish in a folder"]
CASES: tuple[Case, ...] = ("promote", "publish on a server", "publish in a folder")


@dataclass(frozen=True, slots=True)
class Publication:
    """A collection to publish a second time."""

    target: Target
    first: Contents
    """Contents of the first version."""

    @property
    def alias(self) -> str:
        """Return the alias of the publication."""
        return f"{self.target.collection}-live"

    @property
    def arguments(self) -> list[str]:
        """Return the command to kill."""
        option = "--url" if self.target.address.startswith("http") else "--path"
        return ["publish", self.target.collection, "--as", self.alias, option, self.target.address]


def publication_trials(
    case: Case, points: int, trials: int, scratch: Path, url: str, seed: int, fault: Fault = CLIENT_KILLED
) -> Iterator[Trial]:
    """Kill promotions or publications, of sources with so many points."""
    if case == "promote":
        source, contents = _make_source(scratch / "source", points)
        return kill_trials(case, partial(_prepare_promotion, source, contents, url), trials, seed, fault)
    address = url if case == "publish on a server" else None
    return kill_trials(case, partial(_prepare_publication, points, scratch, address), trials, seed, fault)


def _make_source(folder: Path, points: int) -> tuple[Path, Contents]:
    with open_client(path=folder) as client:
        make_collection(client, "docs", points)
        return folder, read_contents(client, "docs")


def _prepare_promotion(source: Path, contents: Contents, url: str, name: str) -> Attempt:
    target = Target(url, f"promote-{name}")
    with target.open() as client:
        make_collection(client, target.collection, 0)
    command = ["promote", "docs", "--path", str(source), "--url", url, "--to", target.collection]
    return Attempt(partial(_run, command), partial(_verify_promotion, command, target, contents))


def _verify_promotion(command: Sequence[str], target: Target, contents: Contents) -> tuple[Counts, Counts]:
    with target.open() as client:
        copy = read_contents(client, target.collection)
    _run(command)
    with target.open() as client:
        wrong = distance(read_contents(client, target.collection), contents)
    return {"copied": len(copy)}, {"torn": differing(copy, contents), "wrong": wrong}


def _prepare_publication(points: int, scratch: Path, url: str | None, name: str) -> Attempt:
    """Create a source with a first published version, and changes for the second one."""
    target = Target(url or str(scratch / f"publish-{name}"), f"publish-{name}")
    with target.open() as client:
        make_collection(client, target.collection, points)
        first = read_contents(client, target.collection)
    publication = Publication(target, first)
    _run(publication.arguments)
    with target.open() as client:
        write_points(client, target.collection, range(points // 4), seed=1)
    return Attempt(partial(_run, publication.arguments), partial(_verify_publication, publication))


def _verify_publication(publication: Publication) -> tuple[Counts, Counts]:
    target, alias = publication.target, publication.alias
    with target.open() as client:
        wanted, copy = read_contents(client, target.collection), read_contents(client, f"{alias}_v2")
        is_switched = behind(client, alias) == f"{alias}_v2"
        unseen = distance(read_contents(client, alias), wanted if is_switched else publication.first)
    if not is_switched:
        _run(publication.arguments)
    with target.open() as client:
        named = {each.name for each in client.get_collections().collections if each.name.startswith(alias)}
        violations = {
            "torn": differing(copy, wanted),
            "unseen": unseen,
            "wrong": distance(read_contents(client, alias), read_contents(client, target.collection)),
            "leftovers": len(named - {f"{alias}_v1", f"{alias}_v2"}),
        }
    return {"copied": len(copy)}, violations


def _run(arguments: Sequence[str]) -> None:
    """Run a command without its output."""
    CliRunner().invoke(care, list(arguments), catch_exceptions=False, standalone_mode=False)
