"""Adds a model's vector where a server cannot add one to a collection: in a copy that has both, behind an alias.

Qdrant takes new named vectors for a collection from 1.18 on. Before, only a new collection can have them: it is made,
filled by difference until it is equal to the one in use, given the vectors, checked, and put behind the alias in one
step. Readers of the alias see the former collection until then. A run that was stopped at any moment is finished by the
same command; ``care publish ALIAS --rollback`` goes back.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from qdrant_client import QdrantClient, models

from care_qdrant.attach.attach import AttachReport, AttachSettings, OnProgress, attach
from care_qdrant.attach.copy_plan import CopyPlan, plan_copy
from care_qdrant.attach.preflight import Preflight, examine
from care_qdrant.errors import NotVerified, ServerTooOld
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.publishing.copying import CopySettings, copy_points, verify_copy
from care_qdrant.publishing.publish import KNOWN_ITEMS
from care_qdrant.publishing.readiness import KnownItems, check_known_items, wait_until_indexed
from care_qdrant.publishing.versions import PUBLISH_KEY, Mark, as_metadata, point_alias, read_versions, write_mark
from care_qdrant.store.attached import ATTACH_KEY
from care_qdrant.store.connection import tune_embedded
from care_qdrant.store.contracts import METADATA_KEY, VectorContract
from care_qdrant.store.create import QUANTIZATION
from care_qdrant.store.points import PointId, delete_points, ids_beyond
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.store.schema import CollectionSchema, check_like, create_indexes, create_like, read_blueprint

MOST_PASSES = 10
"""Of copying what has changed since the last one; a collection that is never at rest is not switched."""
INDEX_SECONDS = 7_200.0
"""That the server may take to build the search index of the copy."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What attaching by a copy did."""

    source: str
    """The collection that was there; it is as it was."""
    alias: str
    """What readers search."""
    version: str
    """The collection behind the alias now, with the new vector."""
    replaces: str
    """Where ``care publish ALIAS --rollback`` goes."""
    passes: int
    """Readings of the source, until one found no difference."""
    copied: int
    """Points that were written, some of them more than once."""
    deleted: int
    """Points that were copied and then deleted in the source."""
    encoded: int
    known_items: KnownItems
    """Points that each of their vectors has to find."""
    attached: AttachReport
    """Of the last pass: what the version holds."""
    seconds: float


@dataclass(slots=True)
class _Pass:
    """What one reading of the source changed in the copy."""

    copied: int
    deleted: int
    sample: list[PointId]


def attach_by_copy(
    client: QdrantClient,
    collection: str,
    model: DocumentModel,
    alias: str | None = None,
    *,
    vector_name: str | None = None,
    settings: AttachSettings | None = None,
    retries: RetryPolicy | None = None,
    on_plan: Callable[[CopyPlan], None] = lambda _: None,
    on_preflight: Callable[[Preflight], None] = lambda _: None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> CopyReport:
    """Copy a collection into one that also has a vector of a model, and let an alias point at it.

    What others write to the collection meanwhile is copied by another pass, until one finds no difference. What they
    write after that pass is not in the copy: writers move to the alias, and rest for the moment of the switch.

    Args:
        client: An open Qdrant.
        collection: The collection, or an alias of it.
        model: The pair; its document encoder is loaded only if something has to be encoded.
        alias: What readers search afterwards; None takes ``collection``, which then must be an alias.
        vector_name: None takes the model's name.
        settings: How.
        retries: How patient to be with a server.
        on_plan: Called before anything is written.
        on_preflight: Called before anything is written.
        on_progress: Called after each request of a copy, and after each batch of the encoder.

    Raises:
        InputError: there is no such collection, no text in its payloads, or its alias cannot be switched.
        ContractError: another model made the vectors of this name.
        NotVerified: the copy is not right, or its source is never at rest; the alias was not switched.
        QdrantError: Qdrant refused or could not be reached; what was written stays, and another run goes on from there.
    """
    settings, start = settings or AttachSettings(), time.perf_counter()
    name, contract = vector_name or model.name, model.contract()
    plan = plan_copy(Collection(client, collection, retries), alias, name, contract)
    origin, target = Collection(client, plan.source, retries), Collection(client, plan.version, retries)
    preflight = examine(origin, name, contract, settings.text_field, in_place=False)
    on_preflight(preflight)
    if preflight.problems or preflight.layout is None:
        raise preflight.problems[0]
    on_plan(plan)
    blueprint = _with_vector(read_blueprint(origin), name, contract, preflight.layout.text_field, settings)
    _prepare(target, blueprint, Mark(plan.source, adds=name))

    passes: list[_Pass] = []
    encoded = 0
    while not passes or passes[-1].copied or passes[-1].deleted:
        if len(passes) == MOST_PASSES:
            raise NotVerified(
                f"collection {plan.source!r} was different at each of {MOST_PASSES} readings; let its writers rest for "
                "the last of them, and run the same command again"
            )
        passes.append(_follow(origin, target, blueprint, name, on_progress))
        attached = attach(
            client, plan.version, model, vector_name=name, settings=settings, retries=retries, on_progress=on_progress
        )
        encoded += attached.encoded

    known_items = _verify(origin, target, blueprint, name, passes[-1].sample, attached)
    write_mark(target, Mark(plan.source, replaces=plan.replaces, adds=name))
    point_alias(target, read_versions(origin, plan.alias))
    return CopyReport(
        source=plan.source,
        alias=plan.alias,
        version=plan.version,
        replaces=plan.replaces,
        passes=len(passes),
        copied=sum(each.copied for each in passes),
        deleted=sum(each.deleted for each in passes),
        encoded=encoded,
        known_items=known_items,
        attached=attached,
        seconds=round(time.perf_counter() - start, 3),
    )


def _with_vector(
    blueprint: CollectionSchema, name: str, contract: VectorContract, text_field: str, settings: AttachSettings
) -> CollectionSchema:
    """Give the same collection with one more vector, and with what an attach leaves in the metadata."""
    params = models.VectorParams(size=contract.dim, distance=models.Distance.COSINE)
    if not blueprint.embedded:
        quantization = QUANTIZATION[settings.quantization]
        params = params.model_copy(
            update={"quantization_config": quantization, "on_disk": settings.on_disk or None},
        )
    old = blueprint.metadata
    metadata = {
        **old,
        METADATA_KEY: {**(old.get(METADATA_KEY) or {}), name: asdict(contract)},
        ATTACH_KEY: {**(old.get(ATTACH_KEY) or {}), name: {"text_field": text_field}},
    }
    dense = {**blueprint.dense, name: params}
    with_vectors = blueprint.config.params.model_copy(update={"vectors": dense})
    config = blueprint.config.model_copy(update={"params": with_vectors, "metadata": metadata})
    return replace(blueprint, config=config, dense=dense)


def _prepare(target: Collection, blueprint: CollectionSchema, mark: Mark) -> None:
    """Make the copy, empty, or check the one that an interrupted run left."""
    if not target.call("looking for the copy", lambda: target.client.collection_exists(target.collection)):
        create_like(target, blueprint, blueprint.metadata | as_metadata(mark))
    found = read_blueprint(target)
    if PUBLISH_KEY not in found.metadata:
        target.call("deleting the copy", lambda: target.client.delete_collection(target.collection))
        raise ServerTooOld("the server does not keep metadata of collections, which hold the fingerprint of the model")
    check_like(target, found, blueprint)
    create_indexes(target, blueprint)
    tune_embedded(target.client, target.collection)


def _follow(
    origin: Collection, target: Collection, blueprint: CollectionSchema, name: str, on_progress: OnProgress
) -> _Pass:
    """Make the copy hold what the source holds now; a point that has changed loses the vector of its former text."""
    is_new = not target.call("counting", lambda: target.client.count(target.collection, exact=True)).count
    settings = CopySettings(overwrite=True, beside=name)
    copied = copy_points(origin, target, blueprint.dense, settings, is_new=is_new, on_progress=on_progress)
    deleted = 0
    for page in list(ids_beyond(origin, target)):
        delete_points(target, page)
        deleted += len(page)
    return _Pass(copied.added + copied.changed, deleted, copied.sample)


def _verify(
    origin: Collection,
    target: Collection,
    blueprint: CollectionSchema,
    name: str,
    sample: list[PointId],
    attached: AttachReport,
) -> KnownItems:
    """Count, compare and search; nobody reads the copy before this."""
    if attached.covered + attached.without_text < attached.points:
        raise NotVerified(
            f"{attached.covered:,} of {attached.points:,} points of collection {target.collection!r} have vector "
            f"{name!r}, and {attached.without_text:,} have no text; run the same command again"
        )
    wait_until_indexed(target, INDEX_SECONDS)
    verify_copy(origin, target, blueprint.dense, sample, beside=name)
    asked = sample[:KNOWN_ITEMS]
    theirs = {key: params for key, params in blueprint.dense.items() if key != name}
    old = check_known_items(origin, target, theirs, asked)
    new = check_known_items(target, target, {name: blueprint.dense[name]}, asked)
    return KnownItems(old.asked + new.asked, old.found + new.found)
