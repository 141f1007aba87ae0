"""The state of collections and the makers of their vectors, and the plan of an attach."""

from dataclasses import dataclass
from typing import Any

from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import Contract, SparseContract, VectorContract
from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.errors import InputError
from care_qdrant.ingestion.settings import DocumentModel, name_of_vector
from care_qdrant.qdrant.aliases import read_versions
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.vectors.copy_plan import plan_copy
from care_qdrant.vectors.points import stored_text
from care_qdrant.vectors.preflight import SAMPLE_POINTS, bytes_per_point, examine, problem_of

SHOWN_TEXTS = 3
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class VectorSummary:
    """Summary of a vector of a collection."""

    name: str
    """Empty for the unnamed vector."""
    kind: str
    """``dense``, ``multi`` or ``sparse``."""
    points: int
    """Number of points that have it."""
    dim: int | None = None
    distance: str | None = None
    made_by: str | None = None
    """Model or analyser; None where another tool wrote it."""
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    """Summary of a collection."""

    name: str
    aliases: tuple[str, ...]
    points: int
    vectors: tuple[VectorSummary, ...]
    unfinished: str | None = None
    """Warning that work writes to the collection, or did when it was interrupted."""


@dataclass(frozen=True, slots=True)
class CollectionDetail:
    """One collection, its server, and where its payloads keep the texts."""

    summary: CollectionSummary
    server_version: str
    """``embedded`` for a folder."""
    strict_mode: dict[str, Any]
    """Limits that the operator has set; empty for none."""
    tool: str | None
    """Tool that wrote the payloads, as guessed; None where no text was found."""
    text_field: str | None
    evidence: str | None
    """Why that tool is guessed, or why no text was found."""
    texts: list[str]
    """Beginnings of a few texts."""
    sampled: int
    sampled_without_text: int
    version_of: str | None
    """Collection that ``care publish`` or ``care attach --via copy`` copied; None for no copy."""
    versions: list[str]
    """Versions of its aliases, itself included."""


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """Plan of ``care attach`` for a collection: its work, its cost, and the reasons to refuse."""

    collection: str
    vector_name: str
    model: str
    """Model of the vector, or the BM25 analyser."""
    tool: str | None
    """Tool that wrote the payloads, as guessed; None where no text was found."""
    text_field: str | None
    sampled: int
    sampled_without_text: int
    points_to_encode: int
    """Number of points without the vector: an upper bound."""
    new_bytes: int | None
    """Bytes of their vectors, in float32 and without an index; None for BM25, where the texts decide."""
    refusals: list[str]
    """Reasons to refuse; empty where nothing stands in the way."""
    copy_plan: list[str]
    """Steps of ``--via copy``, where it is asked for, or where it can attach and an attach in place cannot."""
    notices: list[str]


@accepts_client
def inspect_collection(collection: Collection) -> CollectionDetail:
    """Return one collection in detail; nothing is written.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.

    Raises:
        InputError: There is no such collection.
        QdrantError: Qdrant cannot be reached.
    """
    target = collection.whole()
    summary, strict, record = describe(target), target.schema.strict_mode, target.schema.version_record
    payloads = [point.payload or {} for point in target.sample(SAMPLE_POINTS)]
    known = next(filter(None, map(target.schema.text_field, target.schema.contracts)), None)
    layout, evidence = None, None
    try:
        layout = guess_layout(payloads, text_field=known) if payloads else None
    except InputError as error:
        evidence = str(error)
    texts = [stored_text(layout, each) for each in payloads if layout is not None and layout.find_text(each)]
    return CollectionDetail(
        summary=summary,
        server_version=target.server_version(),
        strict_mode={} if strict is None else strict.model_dump(exclude_none=True),
        tool=layout.tool if layout else None,
        text_field=layout.text_field if layout else None,
        evidence=layout.evidence if layout else evidence,
        texts=[text[:SHOWN_CHARACTERS] for text in texts[:SHOWN_TEXTS]],
        sampled=len(payloads),
        sampled_without_text=len(payloads) - len(texts),
        version_of=None if record is None else record.source,
        versions=[name for alias in summary.aliases for name in read_versions(target, alias).records],
    )


@accepts_client
def plan_attach(
    collection: Collection,
    model: DocumentModel | None,
    *,
    vector_name: str | None = None,
    text_field: str | None = None,
    by_copy: bool = False,
    alias: str | None = None,
) -> AttachPlan:
    """Return what an attach would do; nothing is written.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        model: The pair, whose weights are not read; None adds BM25.
        vector_name: None takes the model's name, or ``bm25``.
        text_field: Payload field with the text; None guesses.
        by_copy: Whether the vector would be added to a copy behind an alias.
        alias: The alias of that copy; None takes ``collection``, which then must be one.

    Raises:
        InputError: There is no such collection.
        QdrantError: Qdrant cannot be reached.
    """
    given, target, name = collection, collection.whole(), name_of_vector(vector_name, model)
    contract = SparseContract.of_texts(()) if model is None else model.contract()
    preflight = examine(target, name, contract, text_field, in_place=not by_copy)
    todo = target.count() - (target.count_with_vector(name) if target.schema.has_vector(name) else 0)
    refusals = [
        str(each) for each in (*preflight.problems, problem_of(model.require_documents) if model else None) if each
    ]
    steps: list[str] = []
    if isinstance(contract, VectorContract):
        if by_copy:
            refused = problem_of(lambda: steps.extend(plan_copy(given, alias, name, contract).lines()))
            refusals += [] if refused is None else [str(refused)]
        elif preflight.problems and not examine(target, name, contract, text_field, in_place=False).problems:
            steps = _copy_plan(target, name, contract)
    unfinished = target.schema.unfinished
    return AttachPlan(
        collection=target.name,
        vector_name=name,
        model=contract.model if isinstance(contract, VectorContract) else contract.fingerprint,
        tool=preflight.layout.tool if preflight.layout else None,
        text_field=preflight.layout.text_field if preflight.layout else None,
        sampled=preflight.sampled,
        sampled_without_text=preflight.sampled_without_text,
        points_to_encode=todo,
        new_bytes=todo * bytes_per_point(contract.params) if isinstance(contract, VectorContract) else None,
        refusals=refusals,
        copy_plan=steps,
        notices=[*preflight.notices, *([unfinished] if unfinished else [])],
    )


def _copy_plan(collection: Collection, vector_name: str, contract: VectorContract) -> list[str]:
    """Describe a copy behind the alias that points here, or behind a new one."""
    leading = (alias for alias, behind in collection.aliases().items() if behind == collection.name)
    try:
        alias = next(leading, f"{collection.name}-live")
        return list(plan_copy(collection, alias, vector_name, contract).lines())
    except InputError as error:
        return [f"refused: {error}"]


def describe_all(client: QdrantClient) -> list[CollectionSummary]:
    """Return all collections by name, with exact counts."""
    return [describe(Collection(client, name)) for name in Collection(client, "").names()]


def describe(collection: Collection) -> CollectionSummary:
    """Return one collection, with exact counts."""
    schema = collection.schema
    dense = [_summary(collection, name, schema.dense[name]) for name in sorted(schema.dense)]
    sparse = [_summary(collection, name, None) for name in sorted(schema.sparse)]
    return CollectionSummary(
        name=collection.name,
        aliases=tuple(sorted(alias for alias, behind in collection.aliases().items() if behind == collection.name)),
        points=collection.count(),
        vectors=(*dense, *sparse),
        unfinished=schema.unfinished,
    )


def _summary(collection: Collection, name: str, params: models.VectorParams | None) -> VectorSummary:
    contract = collection.schema.contracts.get(name)
    kind = "sparse" if params is None else "dense" if params.multivector_config is None else "multi"
    return VectorSummary(
        name=name,
        kind=kind,
        points=collection.count_with_vector(name),
        dim=None if params is None else params.size,
        distance=None if params is None else params.distance.value,
        made_by=_maker(contract),
        fingerprint=None if contract is None else contract.fingerprint,
    )


def _maker(contract: Contract | None) -> str | None:
    if contract is None:
        return None
    return contract.model if isinstance(contract, VectorContract) else contract.fingerprint
