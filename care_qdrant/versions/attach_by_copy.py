"""Adds a model's vector where a server cannot add one to a collection: in a copy that has both, behind an alias.

Qdrant takes new named vectors for a collection from 1.18 on. Before, only a new collection can have them: it is made,
filled by difference until it is equal to the one in use, given the vectors, checked, and put behind the alias in one
step. Readers of the alias see the former collection until then. A run that was stopped at any moment is finished by the
same command; ``care publish ALIAS --rollback`` goes back.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from care_qdrant.contracts.contract import VectorContract, contract_metadata
from care_qdrant.errors import NotVerified, ServerTooOld, counted
from care_qdrant.ingestion.pipeline import require_encoder
from care_qdrant.ingestion.settings import DocumentModel, name_of_vector
from care_qdrant.progress import OnProgress
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.qdrant.create import require_quantization, storage_settings
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.schema import COPY_KEY, CollectionSchema, VersionRecord
from care_qdrant.vectors.attach import AttachReport, AttachSettings, attach_vector
from care_qdrant.vectors.copy_plan import CopyPlan, plan_copy
from care_qdrant.vectors.preflight import Preflight, examine
from care_qdrant.versions.copy import (
    Copied,
    CopySettings,
    KnownItems,
    check_known_items,
    copy_points,
    prepare_target,
    verify_copy,
    wait_until_indexed,
)
from care_qdrant.versions.publish import KNOWN_ITEMS

MOST_PASSES = 10
"""Passes that copy what has changed since the last one; a collection that is never at rest is not switched."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Counts of an attach by a copy."""

    plan: CopyPlan = field(metadata={"printed": ("source", "alias", "version", "replaces")})
    """The collection that was copied, the alias, and the collections behind it now and before."""
    passes: int
    """Number of times that the source was read, until it showed no difference."""
    copied: int
    """Points that were written, some of them more than once."""
    deleted: int
    """Points that were copied and then deleted in the source."""
    encoded: int
    known_items: KnownItems
    """Points that each of their vectors has to find."""
    attached: AttachReport
    """Report of the last attach, whose counts are those of the version."""
    seconds: float


@accepts_client
def attach_by_copy(
    collection: Collection,
    model: DocumentModel,
    alias: str | None = None,
    *,
    vector_name: str | None = None,
    settings: AttachSettings | None = None,
    on_plan: Callable[[CopyPlan], None] = lambda _: None,
    on_preflight: Callable[[Preflight], None] = lambda _: None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> CopyReport:
    """Copy a collection into one that also has a vector of a model, and switch an alias to it.

    What others write to the collection meanwhile is copied by another pass, until one finds no difference. What they
    write after that pass is not in the copy: writers move to the alias, and rest for the moment of the switch.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        model: The model; its document encoder is loaded only if something has to be encoded.
        alias: Alias that readers search afterwards; None takes ``collection``, which then must be an alias.
        vector_name: None takes the model's name.
        settings: Settings of the attach.
        on_plan: Called before anything is written.
        on_preflight: Called before anything is written.
        on_progress: Called after each request of a copy, and after each batch of the encoder.

    Raises:
        InputError: There is no such collection, no text in its payloads, or its alias cannot be switched.
        ContractError: Another model made the vectors of this name.
        NotVerified: The copy is not right, or its source is never at rest; the alias was not switched.
        QdrantError: Qdrant refused or could not be reached; what was written stays, and another run goes on from there.
    """
    settings, start = settings or AttachSettings(), time.perf_counter()
    name, contract = name_of_vector(vector_name, model), model.contract()
    plan = plan_copy(collection, alias, name, contract)
    origin, target = collection.sibling(plan.source), collection.sibling(plan.version)
    require_quantization(origin, settings.quantization)
    preflight = examine(origin, name, contract, settings.text_field, in_place=False)
    on_preflight(preflight)
    attached_contract = replace(contract, text_field=preflight.require_layout().text_field)
    on_plan(plan)
    require_encoder(model)
    origin.schema.require_whole()
    schema = _with_vector(origin, name, attached_contract, settings)
    _prepare(origin, target, schema, VersionRecord(plan.source, adds=name))

    passes: list[Copied] = []
    encoded = 0
    copying = CopySettings(overwrite=True, delete_others=True, beside=name)
    while not passes or passes[-1].added or passes[-1].changed or passes[-1].deleted:
        if len(passes) == MOST_PASSES:
            raise NotVerified(
                f"collection {plan.source!r} was different at each of {MOST_PASSES} readings; let its writers rest for "
                "the last of them, and run the same command again"
            )
        # A point that has changed loses the vector of its former text.
        passes.append(copy_points(origin, target, schema.dense, copying, on_progress))
        attached = attach_vector(target, model, vector_name=name, settings=settings, on_progress=on_progress)
        encoded += attached.encoded

    known_items = _verify(origin, target, schema, name, passes[-1].sample, attached)
    record = VersionRecord(plan.source, replaces=plan.replaces, adds=name)
    target.update("recording what it replaces", metadata=record.metadata() | {COPY_KEY: None})
    target.switch_alias(plan.alias)
    return CopyReport(
        plan=plan,
        passes=len(passes),
        copied=sum(each.added + each.changed for each in passes),
        deleted=sum(each.deleted for each in passes),
        encoded=encoded,
        known_items=known_items,
        attached=attached,
        seconds=round(time.perf_counter() - start, 3),
    )


def _with_vector(origin: Collection, name: str, contract: VectorContract, settings: AttachSettings) -> CollectionSchema:
    """Return the schema of a collection with one more vector and its contract."""
    schema = origin.schema
    held = {} if schema.embedded else storage_settings(origin, settings.quantization, on_disk=settings.on_disk)
    added = contract.params.model_copy(update=held)
    params = schema.config.params.model_copy(update={"vectors": {**schema.dense, name: added}})
    metadata = schema.portable_metadata | contract_metadata(name, contract)
    return replace(schema, config=schema.config.model_copy(update={"params": params, "metadata": metadata}))


def _prepare(origin: Collection, target: Collection, schema: CollectionSchema, record: VersionRecord) -> None:
    """Create the copy, empty, or check the one that an interrupted run left."""
    prepare_target(origin, target, schema, schema.metadata | record.metadata())
    if target.refresh().version_record is None:
        target.drop()
        raise ServerTooOld("the server does not keep metadata of collections, which hold the fingerprint of the model")


def _verify(
    origin: Collection,
    target: Collection,
    schema: CollectionSchema,
    name: str,
    sample: list[PointId],
    attached: AttachReport,
) -> KnownItems:
    """Count, compare and search; nobody reads the copy before this."""
    if attached.covered + attached.without_text < attached.points:
        raise NotVerified(
            f"{counted(attached.covered, 'point', of=attached.points)} of collection {target.name!r} got vector "
            f"{name!r}, and {counted(attached.without_text, 'point', 'have')} no text; run the same command again"
        )
    wait_until_indexed(target)
    verify_copy(origin, target, schema.dense, sample, beside=name)
    asked = sample[:KNOWN_ITEMS]
    theirs = {key: params for key, params in schema.dense.items() if key != name}
    old = check_known_items(origin, target, theirs, asked)
    new = check_known_items(target, target, {name: schema.dense[name]}, asked)
    return KnownItems(old.asked + new.asked, old.found + new.found)
