"""What a Qdrant holds: collections, their vectors, and which model made them."""

from dataclasses import dataclass

from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.contracts import Contract, VectorContract


@dataclass(frozen=True, slots=True)
class VectorSummary:
    """One vector of a collection."""

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
    """One collection."""

    name: str
    aliases: tuple[str, ...]
    points: int
    vectors: tuple[VectorSummary, ...]


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
