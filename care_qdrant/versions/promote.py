"""Copies a collection from the embedded database to a server: ids, payloads, vectors and contracts as they are."""

import time
from dataclasses import dataclass, field

from care_qdrant.contracts.metadata import CONTRACT, COPY, portable
from care_qdrant.errors import InputError
from care_qdrant.progress import OnProgress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.versions.copy import Copied, CopySettings, copy_points, ids_beyond, prepare_target, verify_copy


@dataclass(frozen=True, slots=True)
class PromotionReport:
    """Counts of a promotion."""

    source: str
    target: str
    copied: Copied = field(metadata={"printed": ("points", "added", "changed", "unchanged", "compared")})
    seconds: float
    dry_run: bool = False


def promote_collection(
    source: Collection,
    target: Collection,
    settings: CopySettings | None = None,
    *,
    on_progress: OnProgress = lambda _done, _total: None,
) -> PromotionReport:
    """Copy a collection, and verify the copy. A run that was stopped at any moment is finished by running it again.

    Args:
        source: The collection to copy; other programs must not write to it in the meantime.
        target: The collection to create, or to continue with.
        settings: Settings of the copy.
        on_progress: Called after each request.

    Raises:
        InputError: There is no such source; or the target is an alias, or holds points that the source does not have.
        ContractError: The target exists with other vectors or of another model.
        NotVerified: The copy differs from the source.
        QdrantError: A side refused or could not be reached.
    """
    settings, start = settings or CopySettings(), time.perf_counter()
    source.resolve()
    target = target.sibling(target.name)  # a run that fails stops the object that it writes with
    schema = source.refresh()
    schema.require_whole()
    _prepare(source, target, schema, settings)
    vectors = schema.dense if settings.dry_run and not target.exists() else target.schema.dense
    copied = copy_points(source, target, vectors, settings, on_progress)
    if not settings.dry_run:
        verify_copy(source, target, vectors, copied.sample)
        if COPY.find(target.refresh().metadata) is not None:
            target.update("noting the end of the copy", metadata=COPY.change(None))
    return PromotionReport(
        source=source.name,
        target=target.name,
        copied=copied,
        seconds=round(time.perf_counter() - start, 3),
        dry_run=settings.dry_run,
    )


def _prepare(source: Collection, target: Collection, schema: CollectionSchema, settings: CopySettings) -> None:
    """Check the target that exists, or create it; a dry run creates nothing."""
    behind = target.aliases().get(target.name)
    if behind is not None:
        raise InputError(
            f"{target.name!r} is an alias of collection {behind!r}, which its readers search now; promote into "
            f"a new name, and then switch the alias: care publish NEW_NAME --as {target.name}"
        )
    if target.name == source.resolve().name and _is_same_place(source, target):
        raise InputError(f"collection {target.name!r} would be copied onto itself; choose another name (--to)")
    metadata = portable(schema.metadata)
    if target.exists():
        existing, points = target.refresh(), target.count()
        if COPY.find(existing.metadata) is None:  # else a promotion that was interrupted, which this one finishes
            existing.require_whole()
        existing.require_same(schema, points)
        others = next(ids_beyond(source, target), None) if points else None
        if others:
            raise InputError(
                f"collection {target.name!r} holds points that the source does not have (such as {others[0]!r}), so it "
                "is not an unfinished copy. Nothing was written; choose another name (--to)"
            )
    if not settings.dry_run:
        prepare_target(source, target, schema, metadata)
        contracts = {CONTRACT.of(name) for name in CONTRACT.all(metadata)}
        if lacking := {key: metadata[key] for key in contracts - target.schema.metadata.keys()}:
            target.update("writing the model records", metadata=lacking)


def _is_same_place(source: Collection, target: Collection) -> bool:
    """Return whether two collections are reached by one client, or by two of one server or folder."""
    from_options, to_options = (getattr(side.client, "init_options", {}) for side in (source, target))
    keys = ("location", "url", "host", "port", "path", "prefix")
    is_alike = from_options.get("location") != ":memory:" and all(
        from_options.get(key) == to_options.get(key) for key in keys
    )
    return source.client is target.client or is_alike
