"""Adds a model's vector where a server cannot add one to a collection: in a copy that has both, behind an alias.

Qdrant takes new named vectors for a collection from 1.18 on. Before, only a new collection can have them: it is made,
filled by difference until it is equal to the one in use, given the vectors, checked, and put behind the alias in one
step. Readers of the alias see the former collection until then. A run that was stopped at any moment is finished by the
same command; ``care publish ALIAS --rollback`` goes back.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError, NotVerified, ServerTooOld, next_command
from care_qdrant.index.attach import AttachReport, AttachSettings, attach_vector
from care_qdrant.index.copying import (
    Copied,
    CopySettings,
    KnownItems,
    OnProgress,
    check_known_items,
    copy_points,
    prepare_target,
    verify_copy,
    wait_until_indexed,
)
from care_qdrant.index.preflight import Preflight, bytes_per_point, examine
from care_qdrant.index.publish import KNOWN_ITEMS, read_versions
from care_qdrant.index.settings import DocumentModel, name_of_vector
from care_qdrant.index.work import require_encoder
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.qdrant.contracts import VectorContract, contract_metadata
from care_qdrant.qdrant.create import QUANTIZATION, require_quantization
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import COPY_KEY, CollectionSchema, VersionRecord

MOST_PASSES = 10
"""Passes that copy what has changed since the last one; a collection that is never at rest is not switched."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A copy with one more vector, and the alias that will point at it."""

    source: str
    alias: str
    version: str
    """The collection to create, or the unfinished one to continue with."""
    replaces: str
    """The collection behind the alias until the switch; the source where there is no such alias yet."""
    is_new_alias: bool
    """Nobody searches the alias yet."""
    vector_name: str
    points: int
    copied_bytes: int
    """Bytes of the dense vectors that the server holds twice until the source is deleted; payloads come on top."""
    new_bytes: int
    """Bytes of the new vectors, in float32 and without an index."""

    def lines(self) -> Iterator[str]:
        """Describe the plan in sentences."""
        yield (
            f"collection {self.version!r} gets the {self.points:,} points of {self.source!r}, with all they hold "
            f"({self.copied_bytes / 1e6:,.1f} MB of vectors and the payloads a second time), and vector "
            f"{self.vector_name!r} ({self.new_bytes / 1e6:,.1f} MB)"
        )
        yield f"it is compared, counted and searched, and then alias {self.alias!r} is switched to it in one step"
        if self.is_new_alias:
            yield (
                f"a collection's own name cannot become an alias: who reads {self.source!r} goes on reading it, and "
                f"searches {self.alias!r} for the new vector"
            )
        yield (
            f"what is written to {self.source!r} meanwhile is copied by further passes, until one finds no difference; "
            f"what is written to it after that pass is not in {self.version!r}: let writers rest for the switch, and "
            f"then write to {self.alias!r}"
        )
        yield (
            f"stop it and run it again as you like; before the switch, care detach {self.version} takes the copy away; "
            f"after it, care publish {self.alias} --rollback goes back to {self.replaces!r}, which stays as it is"
        )


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
    """The collection to which ``care publish ALIAS --rollback`` switches back."""
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
    """Of the last pass: what the version holds."""
    seconds: float


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
    """Copy a collection into one that also has a vector of a model, and switch an alias to it.

    What others write to the collection meanwhile is copied by another pass, until one finds no difference. What they
    write after that pass is not in the copy: writers move to the alias, and rest for the moment of the switch.

    Args:
        client: An open Qdrant.
        collection: The collection, or an alias of it.
        model: The pair; its document encoder is loaded only if something has to be encoded.
        alias: What readers search afterwards; None takes ``collection``, which then must be an alias.
        vector_name: None takes the model's name.
        settings: How.
        retries: How often to try a call again.
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
    plan = plan_copy(Collection(client, collection, retries), alias, name, contract)
    origin, target = Collection(client, plan.source, retries), Collection(client, plan.version, retries)
    require_quantization(origin, settings.quantization)
    preflight = examine(origin, name, contract, settings.text_field, in_place=False)
    on_preflight(preflight)
    attached_contract = replace(contract, text_field=preflight.require_layout().text_field)
    on_plan(plan)
    require_encoder(model)
    origin.schema.require_whole()
    schema = _with_vector(origin.schema, name, attached_contract, settings)
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
        attached = attach_vector(
            client, plan.version, model, vector_name=name, settings=settings, retries=retries, on_progress=on_progress
        )
        encoded += attached.encoded

    known_items = _verify(origin, target, schema, name, passes[-1].sample, attached)
    record = VersionRecord(plan.source, replaces=plan.replaces, adds=name)
    target.update("recording what it replaces", metadata=record.metadata() | {COPY_KEY: None})
    target.switch_alias(plan.alias)
    return CopyReport(
        source=plan.source,
        alias=plan.alias,
        version=plan.version,
        replaces=plan.replaces,
        passes=len(passes),
        copied=sum(each.added + each.changed for each in passes),
        deleted=sum(each.deleted for each in passes),
        encoded=encoded,
        known_items=known_items,
        attached=attached,
        seconds=round(time.perf_counter() - start, 3),
    )


def plan_copy(collection: Collection, alias: str | None, vector_name: str, contract: VectorContract) -> CopyPlan:
    """Return what a copy would be; nothing is written."""
    given, origin = collection.name, collection.resolve()
    source = origin.name
    alias = alias or (given if given != source else None)
    if alias is None or alias in origin.names():
        raise InputError(
            f"{alias or given!r} is a collection, and Qdrant lets no alias have the name of one. Choose another name, "
            "which readers then search, " + next_command(f"care attach {given} --via copy --as {given}-live")
        )
    others = sorted(name for name, behind in origin.aliases().items() if behind == source and name != alias)
    if others:
        raise InputError(
            f"alias {others[0]!r} leads to collection {source!r}, too: its readers would stay there, and see no more "
            f"of what is written to {alias!r}. Name it (care attach {others[0]} --via copy), or take it away before"
        )
    versions, points = read_versions(origin, alias), origin.count()
    live = versions.records.get(versions.live or "")
    if live is not None and (live.source, live.adds) == (source, vector_name):
        raise InputError(
            f"alias {alias!r} leads to {versions.live!r}, a copy of {source!r} with vector {vector_name!r}; keep that "
            "one up, " + next_command(f"care attach {alias}")
        )
    return CopyPlan(
        source=source,
        alias=alias,
        version=versions.name_for(source, vector_name),
        replaces=versions.live or source,
        is_new_alias=versions.live is None,
        vector_name=vector_name,
        points=points,
        copied_bytes=points * sum(map(bytes_per_point, origin.schema.dense.values())),
        new_bytes=points * contract.dim * 4,
    )


def _with_vector(
    schema: CollectionSchema, name: str, contract: VectorContract, settings: AttachSettings
) -> CollectionSchema:
    """Return the same schema with one more vector and its contract."""
    added = models.VectorParams(size=contract.dim, distance=contract.qdrant_distance)
    if not schema.embedded:
        added.quantization_config, added.on_disk = QUANTIZATION[settings.quantization], settings.on_disk or None
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
            f"{attached.covered:,} of {attached.points:,} points of collection {target.name!r} have vector "
            f"{name!r}, and {attached.without_text:,} have no text; run the same command again"
        )
    wait_until_indexed(target)
    verify_copy(origin, target, schema.dense, sample, beside=name)
    asked = sample[:KNOWN_ITEMS]
    theirs = {key: params for key, params in schema.dense.items() if key != name}
    old = check_known_items(origin, target, theirs, asked)
    new = check_known_items(target, target, {name: schema.dense[name]}, asked)
    return KnownItems(old.asked + new.asked, old.found + new.found)
