"""Publishes a collection: a verified copy under a new name, then one switch of the alias that readers search.

Readers search the alias all the time; they see the former version until the switch and the new one after it. The
former version stays, so that a rollback is just another switch.
"""

import time
from dataclasses import dataclass, field, replace

from care_qdrant.contracts.metadata import COPY, portable
from care_qdrant.errors import InputError, next_command
from care_qdrant.progress import OnProgress
from care_qdrant.qdrant.aliases import delete_old, read_versions
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.schema import VersionRecord
from care_qdrant.versions.copy import (
    Copied,
    CopySettings,
    KnownItems,
    carried,
    check_known_items,
    copy_points,
    prepare_target,
    verify_copy,
    wait_until_indexed,
)

KNOWN_ITEMS = 50
"""Number of points of a version that searches by their own vectors have to find."""


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Settings of a publication."""

    keep: int | None = None
    """Number of former versions that stay; None deletes nothing."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """Result of a publication, or of its dry run."""

    source: str
    alias: str
    version: str
    """The collection behind the alias now."""
    replaces: str | None
    """The collection behind the alias before; ``--rollback`` goes back to it."""
    copied: Copied = field(metadata={"printed": ("points", "added", "changed", "unchanged", "deleted", "compared")})
    known_items: KnownItems | None
    deleted_versions: list[str]
    seconds: float
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """Result of a rollback, or of its dry run."""

    alias: str
    version: str
    """The collection behind the alias now."""
    left: str
    """The collection behind the alias before; it stays until you delete it."""
    points: int
    left_points: int
    """Number of points in `left`; what was written to the alias while it pointed there is among these only."""
    dry_run: bool = False


@accepts_client
def publish_collection(
    source: Collection,
    alias: str | None = None,
    settings: PublishSettings | None = None,
    *,
    on_progress: OnProgress = lambda _done, _total: None,
) -> PublicationReport:
    """Copy a collection to the next version of an alias, verify the copy, and switch the alias to it.

    A run that was stopped at any moment is finished by running it again.

    Args:
        source: The collection to copy, or an alias of it. Its points should not change in the meantime.
        alias: Alias that readers search; None takes the source, which then must be an alias.
        settings: Settings of the publication.
        on_progress: Called after each request.

    Raises:
        InputError: There is no such collection, or the alias has the name of one.
        NotVerified: The copy differs from the source; the alias was not switched.
        QdrantError: Qdrant refused or could not be reached.
    """
    settings, start = settings or PublishSettings(), time.perf_counter()
    origin = source.whole()
    versions = read_versions(origin, alias or source.name)
    target = origin.sibling(versions.name_for(origin))
    copied, known_items = _copy(origin, target, settings, on_progress)
    deleted_versions: list[str] = []
    if not settings.dry_run:
        record = VersionRecord(origin.name, replaces=versions.live).metadata()
        changes = carried(origin.schema, target.refresh())  # as of its verification, not of the start
        target.update("recording what it replaces", metadata=changes | record | COPY.change(None))
        target.switch_alias(versions.alias)
        deleted_versions = [] if settings.keep is None else delete_old(target, versions, settings.keep)
    return PublicationReport(
        source=origin.name,
        alias=versions.alias,
        version=target.name,
        replaces=versions.live,
        copied=copied,
        known_items=known_items,
        deleted_versions=deleted_versions,
        seconds=round(time.perf_counter() - start, 3),
        dry_run=settings.dry_run,
    )


@accepts_client
def roll_back(searched: Collection, *, dry_run: bool = False) -> RollbackReport:
    """Switch an alias back to the collection that it pointed at before.

    Args:
        searched: An open Qdrant and the alias.
        dry_run: Switch nothing; say what would be switched.

    Raises:
        InputError: There is no such alias, or no earlier version, or it was deleted.
    """
    alias = searched.name
    versions = read_versions(searched, alias)
    if versions.live is None:
        raise InputError(
            f"there is no alias {alias!r}; make one, "
            + next_command(f"care publish COLLECTION --as {alias}", model=False)
        )
    live, record = searched.sibling(versions.live), versions.record(versions.live)
    if record is None or record.replaces is None:
        raise InputError(f"alias {alias!r} points at {live.name!r}, but no earlier version is recorded")
    former = live.sibling(record.replaces)
    if not former.exists():
        there = ", ".join(versions.schemas)
        raise InputError(f"{former.name!r}, where alias {alias!r} pointed before, was deleted (there: {there})")
    if not dry_run:
        live.update("recording the rollback", metadata=replace(record, withdrawn=True).metadata())
        former.switch_alias(alias)
    return RollbackReport(alias, former.name, live.name, former.count(), live.count(), dry_run)


def _copy(
    origin: Collection, target: Collection, settings: PublishSettings, on_progress: OnProgress
) -> tuple[Copied, KnownItems | None]:
    """Make the version equal to the source, and verify it; in a dry run, count what would be written."""
    schema = origin.schema
    schema.require_whole()
    if not settings.dry_run:
        prepare_target(origin, target, schema, portable(schema.metadata) | VersionRecord(origin.name).metadata())
    copying = CopySettings(overwrite=True, delete_others=True, dry_run=settings.dry_run)
    copied = copy_points(origin, target, schema.dense, copying, on_progress)
    if settings.dry_run:
        return copied, None
    wait_until_indexed(target)
    verify_copy(origin, target, schema.dense, copied.sample)
    return copied, check_known_items(origin, target, schema.dense, copied.sample[:KNOWN_ITEMS])
