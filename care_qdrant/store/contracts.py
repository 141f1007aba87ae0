"""The collection contract: which model made the vectors under which name.

Qdrant checks the dimension of a vector and nothing else; two models of one dimension give confident nonsense. So
every collection that we write remembers, in ``metadata["care"][vector_name]``, the fingerprint of the pair that
made the vectors, and every writer and every reader asks here first.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qdrant_client import QdrantClient, models

from care_qdrant import __version__
from care_qdrant.errors import FingerprintMismatch, InputError, SchemaMismatch

METADATA_KEY = "care"


@dataclass(frozen=True, slots=True)
class VectorContract:
    """What a collection remembers of one dense named vector."""

    fingerprint: str
    """Of the CARE folder: SHA-256 over everything that changes a vector."""
    model: str
    dim: int
    tool_version: str = __version__
    kind: str = "dense"


@dataclass(frozen=True, slots=True)
class SparseContract:
    """What a collection remembers of one sparse named vector: BM25 with these constants."""

    fingerprint: str
    """Name and version of the analyser; both sides must use the same."""
    k1: float
    b: float
    average_length: float
    """Mean document length in terms, fixed when the collection is created."""
    tool_version: str = __version__
    kind: str = "sparse"


Contract = VectorContract | SparseContract


def collection_names(client: QdrantClient) -> list[str]:
    """Give the names of all collections, sorted."""
    return sorted(collection.name for collection in client.get_collections().collections)


def only_collection(client: QdrantClient, where: str) -> str:
    """Give the name of the collection when there is one, so that nobody has to type it.

    Raises:
        InputError: there is none, or several.
    """
    names = collection_names(client)
    if not names:
        raise InputError(f"{where}: no collections yet; make one with: care ingest corpus.jsonl")
    if len(names) > 1:
        raise InputError(f"{where}: several collections ({', '.join(names)}); name one with --collection")
    return names[0]


def require_collection(client: QdrantClient, collection: str) -> None:
    """Refuse a name that is neither a collection nor an alias, and say what is there.

    Raises:
        InputError: the name is not known.
    """
    names = collection_names(client)
    aliases = [alias.alias_name for alias in client.get_aliases().aliases]
    if collection not in (*names, *aliases):
        there = ", ".join([*names, *(f"{alias} (alias)" for alias in sorted(aliases))]) or "none"
        raise InputError(f"there is no collection {collection!r} (there: {there})")


def read_metadata(client: QdrantClient, collection: str) -> dict[str, Any]:
    """Give the metadata of a collection; empty where it has none, or where who answers knows of none."""
    return dict(getattr(client.get_collection(collection).config, "metadata", None) or {})


def read_contracts(client: QdrantClient, collection: str) -> dict[str, Contract]:
    """Give the contract of each vector that carries one; empty for a collection that another tool made."""
    metadata = read_metadata(client, collection)
    return {name: _parse(entry) for name, entry in (metadata.get(METADATA_KEY) or {}).items()}


def write_contract(
    client: QdrantClient,
    collection: str,
    vector_name: str,
    contract: Contract,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Record a contract beside those that are there.

    Args:
        client: An open Qdrant.
        collection: Its name.
        vector_name: What the contract is of.
        contract: What made the vector.
        beside: More about the vector, by key of the collection's metadata; written in the same request.
    """
    metadata = read_metadata(client, collection)
    entries = {METADATA_KEY: asdict(contract), **(beside or {})}
    ours = {key: {**(metadata.get(key) or {}), vector_name: entry} for key, entry in entries.items()}
    client.update_collection(collection, metadata=ours)


def erase_contract(client: QdrantClient, collection: str, vector_name: str) -> None:
    """Forget a contract, and leave the others as they are."""
    metadata = client.get_collection(collection).config.metadata or {}
    entries = {name: entry for name, entry in (metadata.get(METADATA_KEY) or {}).items() if name != vector_name}
    client.update_collection(collection, metadata={METADATA_KEY: entries})


def dense_vectors(client: QdrantClient, collection: str) -> dict[str, models.VectorParams]:
    """Give the dense vectors of a collection by name; the unnamed one is ``""``."""
    vectors = client.get_collection(collection).config.params.vectors
    if vectors is None:
        return {}
    return vectors if isinstance(vectors, dict) else {"": vectors}


def sparse_vectors(client: QdrantClient, collection: str) -> dict[str, models.SparseVectorParams]:
    """Give the sparse vectors of a collection by name."""
    return dict(client.get_collection(collection).config.params.sparse_vectors or {})


def check_contract(client: QdrantClient, collection: str, vector_name: str, expected: VectorContract) -> None:
    """Refuse to touch a named vector that is not the one ``expected`` describes.

    Raises:
        InputError: the collection has no dense vector of that name.
        SchemaMismatch: its dimension or distance differ.
        FingerprintMismatch: another model made its vectors, or nothing says which did.
    """
    vectors = dense_vectors(client, collection)
    if vector_name not in vectors:
        raise InputError(
            f"collection {collection!r} has no vector {vector_name!r} (it has: {_names(vectors)}); "
            f"add it, with the same --model and --path/--url: care attach {collection} --vector-name {vector_name}"
        )
    params = vectors[vector_name]
    if params.size != expected.dim or params.distance != models.Distance.COSINE:
        raise SchemaMismatch(
            f"vector {vector_name!r} of collection {collection!r} is {params.size}-dimensional with "
            f"{params.distance.value} distance; model {expected.model!r} needs {expected.dim} dimensions and Cosine. "
            "Use another --vector-name."
        )
    found = read_contracts(client, collection).get(vector_name)
    if found is None:
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {collection!r} carries no fingerprint: another tool wrote it, and "
            f"its space is unknown. Add model {expected.model!r} beside it under another name, with the same --model "
            "and --path/--url: "
            f"care attach {collection} --vector-name {expected.model}"
        )
    if found.fingerprint != expected.fingerprint:
        made_by = found.model if isinstance(found, VectorContract) else "a sparse encoder"
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {collection!r} was made by {made_by} "
            f"({found.fingerprint[:12]}), not by {expected.model} ({expected.fingerprint[:12]}). "
            "Search it with that model, or add this one beside it, with the same --model and --path/--url: "
            f"care attach {collection} --vector-name {expected.model}-{expected.fingerprint[:8]}"
        )


def check_sparse_contract(client: QdrantClient, collection: str, vector_name: str, analyser: str) -> SparseContract:
    """Give the constants of a sparse vector, and refuse one that another analyser wrote.

    Raises:
        InputError: the collection has no sparse vector of that name.
        SchemaMismatch: Qdrant does not weigh its terms by their inverse document frequency.
        FingerprintMismatch: another analyser made it, or nothing says which did.
    """
    vectors = sparse_vectors(client, collection)
    where = f"sparse vector {vector_name!r} of collection {collection!r}"
    if vector_name not in vectors:
        raise InputError(
            f"collection {collection!r} has no sparse vector {vector_name!r} (it has: {_names(vectors)}); "
            "ingest the corpus with: --sparse bm25"
        )
    if vectors[vector_name].modifier != models.Modifier.IDF:
        raise SchemaMismatch(f"{where} was created without the IDF modifier that BM25 needs; ingest into a new one")
    found = read_contracts(client, collection).get(vector_name)
    if not isinstance(found, SparseContract) or found.fingerprint != analyser:
        made_by = found.fingerprint if found is not None else "an unknown tool"
        raise FingerprintMismatch(
            f"{where} was cut into terms by {made_by}, not by {analyser}: its terms would not meet ours. "
            "Ingest the corpus again with --sparse bm25 into a new collection."
        )
    return found


def _parse(entry: Mapping[str, Any]) -> Contract:
    kind = SparseContract if entry.get("kind") == "sparse" else VectorContract
    known = {key: value for key, value in entry.items() if key in kind.__dataclass_fields__}
    return kind(**known)


def _names(vectors: Mapping[str, Any]) -> str:
    return ", ".join("(unnamed)" if name == "" else name for name in sorted(vectors)) or "none"
