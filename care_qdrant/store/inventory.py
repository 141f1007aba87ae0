"""What a Qdrant holds: collections, their vectors, and which model made them."""

from dataclasses import dataclass

from qdrant_client import QdrantClient, models

from care_qdrant.store.contracts import (
    Contract,
    SparseContract,
    VectorContract,
    collection_names,
    dense_vectors,
    read_contracts,
    sparse_vectors,
)


@dataclass(frozen=True, slots=True)
class VectorSummary:
    """One vector of a collection."""

    name: str
    """Empty for the unnamed vector."""
    kind: str
    """``dense``, ``multi`` or ``sparse``."""
    points: int
    """How many points have it."""
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
    """Give all collections by name, with exact counts."""
    return [describe(client, name) for name in collection_names(client)]


def describe(client: QdrantClient, collection: str) -> CollectionSummary:
    """Give one collection, with exact counts."""
    contracts = read_contracts(client, collection)
    dense = [
        _dense_summary(client, collection, name, params, contracts.get(name))
        for name, params in sorted(dense_vectors(client, collection).items())
    ]
    sparse = [
        _sparse_summary(client, collection, name, contracts.get(name))
        for name in sorted(sparse_vectors(client, collection))
    ]
    aliases = client.get_collection_aliases(collection).aliases
    return CollectionSummary(
        name=collection,
        aliases=tuple(sorted(alias.alias_name for alias in aliases)),
        points=client.count(collection, exact=True).count,
        vectors=(*dense, *sparse),
    )


def count_with_vector(client: QdrantClient, collection: str, vector_name: str) -> int:
    """Give the exact number of points that have a vector of this name."""
    has_vector = models.Filter(must=[models.HasVectorCondition(has_vector=vector_name)])
    return client.count(collection, count_filter=has_vector, exact=True).count


def _dense_summary(
    client: QdrantClient, collection: str, name: str, params: models.VectorParams, contract: Contract | None
) -> VectorSummary:
    model = contract if isinstance(contract, VectorContract) else None
    return VectorSummary(
        name=name,
        kind="dense" if params.multivector_config is None else "multi",
        points=count_with_vector(client, collection, name),
        dim=params.size,
        distance=params.distance.value,
        made_by=model.model if model else None,
        fingerprint=model.fingerprint if model else None,
    )


def _sparse_summary(client: QdrantClient, collection: str, name: str, contract: Contract | None) -> VectorSummary:
    analyser = contract.fingerprint if isinstance(contract, SparseContract) else None
    points = count_with_vector(client, collection, name)
    return VectorSummary(name, "sparse", points, made_by=analyser, fingerprint=analyser)
