"""The state of collections for `care status`: their vectors, which models made them, and where the texts are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdrant_client import QdrantClient, models

from care_qdrant.contracts.active import Active
from care_qdrant.contracts.contract import Contract, VectorContract
from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.encoders import TextReader
from care_qdrant.errors import InputError, Rejected
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.aliases import read_versions
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.retry import is_collection_gone
from care_qdrant.vectors.points import stored_text
from care_qdrant.vectors.preflight import SAMPLE_POINTS

SHOWN_TEXTS = 3
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class VectorSummary:
    """Summary of a vector of a collection."""

    name: str
    """Name of the vector; empty for the unnamed one."""
    kind: str
    """``dense``, ``multi`` or ``sparse``."""
    points: int
    """Number of points that have it."""
    dim: int | None = None
    distance: str | None = None
    made_by: str | None = None
    """Model or analyser that made the vector; None where another tool wrote it."""
    fingerprint: str | None = None
    learned: str | None = None
    """Query encoder that was learned from it; None where there is none."""
    learned_fingerprint: str | None = None
    stand_ins: int | None = 0
    """Points whose vector a learned query encoder made, in place of the model; None where they cannot be counted."""
    stand_in_models: tuple[str, ...] = ()
    """Learned query encoders that made the vectors of `stand_ins`."""


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    """Summary of a collection."""

    name: str
    aliases: tuple[str, ...]
    points: int
    vectors: tuple[VectorSummary, ...]
    active: Active | None = None
    """Record of the vector that readers search; None before the first switch."""
    unfinished: str | None = None
    """Warning that a run writes to the collection, or was interrupted while writing; None without one."""


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
    """Reason for the guess of the tool, or why no text was found."""
    texts: list[str]
    """Beginnings of a few texts."""
    sampled: int
    sampled_without_text: int
    unread_by_included: int | None
    """Number of sampled texts that the included model does not read; None if it made no vector."""
    version_of: str | None
    """Source of which ``care publish`` made this copy; None where it did not."""
    versions: list[str]
    """Versions of its aliases, including itself."""


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
    with_text = [] if layout is None else [each for each in payloads if layout.of_point(each).find_text(each)]
    texts = [] if layout is None else [stored_text(layout, payload) for payload in with_text]
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
        unread_by_included=_unread_by_included(summary, texts),
        version_of=None if record is None else record.source,
        versions=[name for alias in summary.aliases for name in read_versions(target, alias).schemas],
    )


def _unread_by_included(summary: CollectionSummary, texts: Sequence[str]) -> int | None:
    model = CareModel.load()
    if all(vector.fingerprint != model.fingerprint for vector in summary.vectors):
        return None
    reader = model.document_tokenizer
    return sum(bool(reader.unread(text)) for text in texts) if isinstance(reader, TextReader) else None


def describe_all(client: QdrantClient) -> list[CollectionSummary]:
    """Return all collections by name, with exact counts; one that is deleted meanwhile is left out."""
    summaries = []
    for name in Collection(client, "").names():
        try:
            summaries.append(describe(Collection(client, name)))
        except Rejected as error:
            if not is_collection_gone(error):
                raise
    return summaries


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
        active=schema.active,
        unfinished=schema.unfinished,
    )


def _summary(collection: Collection, name: str, params: models.VectorParams | None) -> VectorSummary:
    schema = collection.schema
    contract, learned = schema.contracts.get(name), schema.learned.get(name)
    kind = "sparse" if params is None else "dense" if params.multivector_config is None else "multi"
    return VectorSummary(
        name=name,
        kind=kind,
        points=collection.count_with_vector(name),
        dim=None if params is None else params.size,
        distance=None if params is None else params.distance.value,
        made_by=_maker(contract),
        fingerprint=None if contract is None else contract.fingerprint,
        learned=None if learned is None else learned.model,
        learned_fingerprint=None if learned is None else learned.fingerprint,
        stand_ins=collection.count_stand_ins(name),
        stand_in_models=tuple(sorted(set(schema.stand_ins.get(name, {}).values()))),
    )


def _maker(contract: Contract | None) -> str | None:
    if contract is None:
        return None
    return contract.model if isinstance(contract, VectorContract) else contract.fingerprint
