"""Publishes a collection: a verified copy under a new name, then one switch of the alias that readers search.

Readers search the alias all the time; they see the former version until the switch and the new one after it. The
former version stays, so that going back is a switch, too.
"""

import time
from dataclasses import dataclass, replace
from typing import Literal

from qdrant_client import QdrantClient

from care_qdrant.errors import InputError
from care_qdrant.publishing.copying import Copied, CopySettings, OnProgress, Sample, copy_points, verify_copy
from care_qdrant.publishing.readiness import KnownItems, check_known_items, wait_until_indexed
from care_qdrant.publishing.snapshot import fill_by_snapshot, require_snapshots
from care_qdrant.publishing.versions import Mark, as_metadata, delete_old, point_alias, read_versions, write_mark
from care_qdrant.store.connection import tune_embedded
from care_qdrant.store.points import count_points, delete_points, ids_beyond, read_ids
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.store.schema import CollectionSchema, check_like, create_indexes, create_like, read_blueprint, resolve

KNOWN_ITEMS = 50
"""Points that their own vectors have to find."""


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """How to publish."""

    keep: int | None = None
    """Former versions that stay; None deletes nothing."""
    sample: int = 1_000
    """Points that are read back and compared."""
    index_minutes: float = 120.0
    """How long the server may take to build the search index before the alias is switched."""
    via: Literal["copy", "snapshot"] = "copy"
    """Read and write each point; or let a server of one node fill the version from its own snapshot."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """What a publication did, or would do."""

    source: str
    alias: str
    version: str
    """The collection behind the alias now."""
    replaces: str | None
    """The one before; ``--rollback`` goes back to it."""
    points: int
    added: int
    changed: int
    unchanged: int
    """Points that were in the version already, from a run that was interrupted."""
    deleted: int
    """Points that such a run copied and the source no longer has."""
    compared: int
    """Points that were read back and compared."""
    known_items: KnownItems | None
    deleted_versions: list[str]
    seconds: float
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """What a rollback did, or would do."""

    alias: str
    version: str
    """The collection behind the alias now."""
    left: str
    """The one before; it stays, and can be deleted when nobody wants it any more."""
    points: int
    left_points: int
    """What was written to the alias since it led there is among these, and not among `points`."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Built:
    """A version that is equal to its source."""

    copied: Copied
    deleted: int = 0
    known_items: KnownItems | None = None


def publish(
    client: QdrantClient,
    source: str,
    alias: str | None = None,
    settings: PublishSettings | None = None,
    *,
    retries: RetryPolicy | None = None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> PublicationReport:
    """Copy a collection to the next version of an alias, verify the copy, and switch the alias to it.

    A run that was stopped at any moment is finished by running it again.

    Args:
        client: An open Qdrant.
        source: The collection to copy, or an alias of it. Its points should not change in the meantime.
        alias: What readers search; None takes the source, which then must be an alias.
        settings: How.
        retries: How patient to be with a server.
        on_progress: Called after each request.

    Raises:
        InputError: there is no such collection, or the alias has the name of one.
        NotVerified: the copy is not what the source is; the alias was not switched.
        QdrantError: Qdrant refused or could not be reached.
    """
    settings, start = settings or PublishSettings(), time.perf_counter()
    origin = Collection(client, source, retries)
    origin = Collection(client, origin.call("looking for the source", lambda: resolve(client, source)), retries)
    versions = read_versions(origin, alias or source)
    target = Collection(client, versions.name_for(origin.collection), retries)
    gone: list[str] = []
    if settings.dry_run:
        built = _compare(origin, target, settings, on_progress)
    else:
        built = _build(origin, target, settings, on_progress)
        write_mark(target, Mark(origin.collection, replaces=versions.live))
        point_alias(target, versions)
        gone = delete_old(target, versions, settings.keep) if settings.keep is not None else []
    return PublicationReport(
        source=origin.collection,
        alias=versions.alias,
        version=target.collection,
        replaces=versions.live,
        points=built.copied.points,
        added=built.copied.added,
        changed=built.copied.changed,
        unchanged=built.copied.unchanged,
        deleted=built.deleted,
        compared=0 if settings.dry_run else len(built.copied.sample),
        known_items=built.known_items,
        deleted_versions=gone,
        seconds=round(time.perf_counter() - start, 3),
        dry_run=settings.dry_run,
    )


def roll_back(
    client: QdrantClient, alias: str, *, dry_run: bool = False, retries: RetryPolicy | None = None
) -> RollbackReport:
    """Switch an alias back to the collection that stood behind it before.

    Raises:
        InputError: there is no such alias, nothing was before, or it was deleted.
    """
    versions = read_versions(Collection(client, alias, retries), alias)
    if versions.live is None:
        raise InputError(f"there is no alias {alias!r}; care publish COLLECTION --as {alias} makes one")
    live = Collection(client, versions.live, retries)
    mark = versions.marks.get(versions.live)
    if mark is None or mark.replaces is None:
        raise InputError(f"alias {alias!r} points at {versions.live!r}, and nothing is known to have been before it")
    former = Collection(client, mark.replaces, retries)
    if not former.call("looking for it", lambda: client.collection_exists(former.collection)):
        there = ", ".join(versions.marks)
        raise InputError(f"{former.collection!r}, where alias {alias!r} pointed before, was deleted (there: {there})")
    if not dry_run:
        write_mark(live, replace(mark, withdrawn=True))
        point_alias(former, versions)
    points, left_points = count_points(former), count_points(live)
    return RollbackReport(alias, former.collection, live.collection, points, left_points, dry_run)


def _compare(origin: Collection, target: Collection, settings: PublishSettings, on_progress: OnProgress) -> _Built:
    """Say what would be written."""
    vectors, is_new = read_blueprint(origin).dense, not _exists(target)
    copying = CopySettings(dry_run=True, sample=settings.sample)
    copied = copy_points(origin, target, vectors, copying, is_new=is_new, on_progress=on_progress)
    return _Built(copied, 0 if is_new else sum(map(len, ids_beyond(origin, target))))


def _build(origin: Collection, target: Collection, settings: PublishSettings, on_progress: OnProgress) -> _Built:
    """Make the version equal to the source, and verify it."""
    if settings.via == "snapshot":
        require_snapshots(origin)
    blueprint = read_blueprint(origin)
    is_new = _prepare(origin, target, blueprint)
    copying, deleted = CopySettings(overwrite=True, sample=settings.sample), 0
    if is_new and settings.via == "snapshot":
        copied = _recover(origin, target, settings)
    else:
        copied = copy_points(origin, target, blueprint.dense, copying, is_new=is_new, on_progress=on_progress)
    for page in () if is_new else list(ids_beyond(origin, target)):
        delete_points(target, page)
        deleted += len(page)
    wait_until_indexed(target, settings.index_minutes * 60)
    verify_copy(origin, target, blueprint.dense, copied.sample)
    known_items = check_known_items(origin, target, blueprint.dense, copied.sample[:KNOWN_ITEMS])
    return _Built(copied, deleted, known_items)


def _recover(origin: Collection, target: Collection, settings: PublishSettings) -> Copied:
    """Fill an empty version from a snapshot."""
    fill_by_snapshot(origin, target, settings.index_minutes * 60)
    sample = Sample(settings.sample)
    for ids in read_ids(origin):
        sample.draw(ids)
    return Copied(added=count_points(target), sample=sample.ids)


def _prepare(origin: Collection, target: Collection, blueprint: CollectionSchema) -> bool:
    """Make the version, or check the one that an interrupted run left; say whether it is empty."""
    if not _exists(target):
        create_like(target, blueprint, blueprint.metadata | as_metadata(Mark(origin.collection)))
    found = read_blueprint(target)
    check_like(target, found, blueprint)
    create_indexes(target, blueprint)
    tune_embedded(target.client, target.collection)
    return found.points == 0


def _exists(link: Collection) -> bool:
    return link.call("looking for the version", lambda: link.client.collection_exists(link.collection))
