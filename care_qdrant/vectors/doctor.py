"""Diagnosis of collections: the makers of their vectors, and the work and the obstacles of an attach."""

from dataclasses import dataclass
from typing import Any

from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import Contract, VectorContract
from care_qdrant.errors import InputError
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.schema import BYTES_PER_NUMBER
from care_qdrant.vectors.copy_plan import plan_copy
from care_qdrant.vectors.points import stored_text
from care_qdrant.vectors.preflight import SAMPLE_POINTS, Preflight, examine, problem_of

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
class Diagnosis:
    """Diagnosis of a collection: what it holds, and what ``care attach`` would do with it."""

    summary: CollectionSummary
    server_version: str
    """``embedded`` for a folder."""
    strict_mode: dict[str, Any]
    """Limits that the operator has set; empty for none."""
    tool: str | None
    """Tool that wrote the payloads, as guessed; None where no text was found."""
    text_field: str | None
    evidence: str | None
    texts: list[str]
    """The beginnings of a few texts."""
    sampled: int
    sampled_without_text: int
    vector_name: str
    model: str
    points_to_encode: int
    """Number of points without the vector: an upper bound."""
    new_bytes: int
    """Bytes of their vectors, in float32 and without an index."""
    refusals: list[str]
    """Empty where nothing stands in the way."""
    copy_plan: list[str]
    """Steps of ``care attach --via copy``, where it can add the vector and an attach in place cannot."""
    notices: list[str]


@accepts_client
def diagnose(
    collection: Collection,
    model: DocumentModel,
) -> Diagnosis:
    """Examine a collection; nothing is written.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        model: The model to attach; its weights are not read.

    Raises:
        InputError: There is no such collection.
        QdrantError: Qdrant cannot be reached.
    """
    target = collection.whole()
    name, contract = model.name, model.contract()
    preflight, summary, strict = examine(target, name, contract, None), describe(target), target.schema.strict_mode
    layout, texts = preflight.layout, _texts(target, preflight)
    needs_copy = bool(preflight.problems) and not examine(target, name, contract, None, in_place=False).problems
    todo = summary.points - next((vector.points for vector in summary.vectors if vector.name == name), 0)
    return Diagnosis(
        summary=summary,
        server_version=target.server_version(),
        strict_mode={} if strict is None else strict.model_dump(exclude_none=True),
        tool=layout.tool if layout else None,
        text_field=layout.text_field if layout else None,
        evidence=layout.evidence if layout else None,
        texts=[text[:SHOWN_CHARACTERS] for text in texts],
        sampled=preflight.sampled,
        sampled_without_text=preflight.sampled_without_text,
        vector_name=name,
        model=contract.model,
        points_to_encode=todo,
        new_bytes=todo * contract.dim * BYTES_PER_NUMBER["float32"],
        refusals=[str(each) for each in (*preflight.problems, problem_of(model.require_documents)) if each],
        copy_plan=_copy_plan(target, name, contract) if needs_copy else [],
        notices=[*preflight.notices, *([unfinished] if (unfinished := target.schema.unfinished) else [])],
    )


def _copy_plan(collection: Collection, vector_name: str, contract: VectorContract) -> list[str]:
    """Describe a copy behind the alias that points here, or behind a new one."""
    leading = (alias for alias, behind in collection.aliases().items() if behind == collection.name)
    try:
        alias = next(leading, f"{collection.name}-live")
        return list(plan_copy(collection, alias, vector_name, contract).lines())
    except InputError as error:
        return [f"refused: {error}"]


def _texts(collection: Collection, preflight: Preflight) -> list[str]:
    """Return a few texts."""
    layout = preflight.layout
    if layout is None:
        return []
    payloads = (record.payload or {} for record in collection.sample(SAMPLE_POINTS))
    return [stored_text(layout, payload) for payload in payloads if layout.find_text(payload)][:SHOWN_TEXTS]


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
