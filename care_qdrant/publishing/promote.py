"""Takes a collection from the embedded database to a server: ids, payloads, vectors and contracts as they are."""

import time
from dataclasses import dataclass

from care_qdrant.errors import InputError
from care_qdrant.publishing.copying import Copied, CopySettings, OnProgress, copy_points, verify_copy
from care_qdrant.publishing.versions import PUBLISH_KEY
from care_qdrant.store.attached import ATTACH_KEY
from care_qdrant.store.contracts import METADATA_KEY, require_collection
from care_qdrant.store.points import ids_beyond
from care_qdrant.store.retry import Collection
from care_qdrant.store.schema import CollectionSchema, aliases, check_like, create_indexes, create_like, read_blueprint


@dataclass(frozen=True, slots=True)
class PromotionReport:
    """What a promotion did."""

    source: str
    target: str
    points: int
    """In the source, and afterwards in the target."""
    added: int
    changed: int
    """Points that were in the target with other content, and were replaced."""
    unchanged: int
    """Points that were in the target already, for instance from a run that was interrupted."""
    compared: int
    """Points that were read back and compared afterwards."""
    seconds: float
    dry_run: bool = False


def promote(
    source: Collection,
    target: Collection,
    settings: CopySettings | None = None,
    *,
    on_progress: OnProgress = lambda _done, _total: None,
) -> PromotionReport:
    """Copy a collection, and verify the copy. A run that was stopped at any moment is finished by running it again.

    Args:
        source: The collection to copy; nobody else may write to it in the meantime.
        target: The collection to make, or to go on with.
        settings: How.
        on_progress: Called after each request.

    Raises:
        InputError: there is no such source; or the target is an alias, or holds points that the source has not.
        ContractError: the target is there with other vectors or of another model.
        NotVerified: the copy is not what the source is.
        QdrantError: a side refused or could not be reached.
    """
    settings, start = settings or CopySettings(), time.perf_counter()
    source.call("looking for the source", lambda: require_collection(source.client, source.collection))
    blueprint = read_blueprint(source)
    found = _prepare(source, target, blueprint, settings)
    is_new = found is None or not found.points
    vectors = blueprint.dense if found is None else found.dense
    copied = copy_points(source, target, vectors, settings, is_new=is_new, on_progress=on_progress)
    if not settings.dry_run:
        verify_copy(source, target, vectors, copied.sample)
    return _report(source, target, copied, settings, time.perf_counter() - start)


def _prepare(
    source: Collection, target: Collection, blueprint: CollectionSchema, settings: CopySettings
) -> CollectionSchema | None:
    """Check the target that is there, or make it; None where a dry run finds none."""
    _refuse_alias(target)
    metadata = {key: value for key, value in blueprint.metadata.items() if key != PUBLISH_KEY}
    if not target.call("looking for the target", lambda: target.client.collection_exists(target.collection)):
        if settings.dry_run:
            return None
        create_like(target, blueprint, metadata)
    found = read_blueprint(target)
    check_like(target, found, blueprint)
    if found.points:
        _refuse_strangers(source, target)
    if not settings.dry_run:
        create_indexes(target, blueprint)
        ours = (key for key in (METADATA_KEY, ATTACH_KEY) if key in metadata and key not in found.metadata)
        if lacking := {key: metadata[key] for key in ours}:
            target.call("writing the contract", lambda: _write_metadata(target, lacking))
    return found


def _write_metadata(link: Collection, metadata: dict[str, object]) -> bool:
    return link.client.update_collection(link.collection, metadata=metadata)


def _refuse_alias(target: Collection) -> None:
    behind = target.call("reading the aliases", lambda: aliases(target.client)).get(target.collection)
    if behind is not None:
        raise InputError(
            f"{target.collection!r} is an alias of collection {behind!r}, which its readers search now; promote into "
            f"a new name, and then switch the alias: care publish NEW_NAME --as {target.collection}"
        )


def _refuse_strangers(source: Collection, target: Collection) -> None:
    strangers = next(ids_beyond(source, target), None)
    if strangers:
        raise InputError(
            f"collection {target.collection!r} holds points that the source has not (such as {strangers[0]!r}), so it "
            "is no unfinished copy. Nothing was written; choose another name (--to)"
        )


def _report(
    source: Collection, target: Collection, copied: Copied, settings: CopySettings, seconds: float
) -> PromotionReport:
    return PromotionReport(
        source=source.collection,
        target=target.collection,
        points=copied.points,
        added=copied.added,
        changed=copied.changed,
        unchanged=copied.unchanged,
        compared=0 if settings.dry_run else len(copied.sample),
        seconds=round(seconds, 3),
        dry_run=settings.dry_run,
    )
