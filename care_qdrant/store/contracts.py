"""The collection contract: which model made the vectors under which name.

Qdrant checks the dimension of a vector and nothing else; two models of one dimension give confident nonsense. So
every collection that we write keeps, in its metadata under ``care:<vector name>``, the fingerprint of the pair that
made the vectors, and every writer and every reader checks it first. There is one top-level key per vector, because
Qdrant merges metadata at the top level: two writers of different vectors cannot lose each other's entries.

All functions here are pure: they look at a `CollectionSchema` that was read before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from qdrant_client import models

from care_qdrant import __version__
from care_qdrant.errors import FingerprintMismatch, InputError, SchemaMismatch
from care_qdrant.store.learned import check_learned

if TYPE_CHECKING:
    from care_qdrant.store.schema import CollectionSchema

METADATA_PREFIX = "care:"


@dataclass(frozen=True, slots=True)
class VectorContract:
    """What a collection keeps about one dense named vector."""

    fingerprint: str
    """SHA-256 over everything in the CARE folder that changes a vector."""
    model: str
    dim: int
    text_field: str | None = None
    """Payload field whose text was encoded, where ``care attach`` added the vector; None for any other vector."""
    tool_version: str = __version__
    distance: str = "Cosine"
    """Of the model's geometry, as Qdrant names it: ``Cosine`` or ``Dot``."""
    kind: str = "dense"

    @property
    def qdrant_distance(self) -> models.Distance:
        """The distance that the named vector has to have."""
        return models.Distance(self.distance)


@dataclass(frozen=True, slots=True)
class SparseContract:
    """What a collection keeps about one sparse named vector: BM25 with these constants."""

    fingerprint: str
    """Name and version of the analyser; both sides must use the same."""
    k1: float
    b: float
    average_length: float
    """Mean document length in terms, fixed when the collection is created."""
    tool_version: str = __version__
    kind: str = "sparse"


@dataclass(frozen=True, slots=True)
class UnreadableContract:
    """An entry under our key that this version cannot read: a newer version or another program wrote it."""

    fingerprint: str = "unreadable"
    kind: str = "unreadable"


Contract = VectorContract | SparseContract | UnreadableContract

_KINDS: Mapping[str, type[VectorContract | SparseContract]] = {"dense": VectorContract, "sparse": SparseContract}
_FLOATS = ("k1", "b", "average_length")


def contract_metadata(vector_name: str, contract: Contract) -> dict[str, Any]:
    """Return a contract as an entry of a collection's metadata.

    Floats are stored as text: a server may return a number of its metadata with another last bit.
    """
    entry = {key: value for key, value in asdict(contract).items() if value is not None}
    return {f"{METADATA_PREFIX}{vector_name}": entry | {key: repr(entry[key]) for key in _FLOATS if key in entry}}


def contract_removal(vector_name: str) -> dict[str, Any]:
    """Return the metadata update that removes a contract: a value of None removes a top-level key."""
    return {f"{METADATA_PREFIX}{vector_name}": None}


def parse_contracts(metadata: Mapping[str, Any]) -> dict[str, Contract]:
    """Return the contract of each vector that carries one; empty for a collection that another tool made."""
    return {
        key.removeprefix(METADATA_PREFIX): _parse(entry)
        for key, entry in metadata.items()
        if key.startswith(METADATA_PREFIX) and entry is not None
    }


def check_contract(schema: "CollectionSchema", vector_name: str, expected: VectorContract) -> None:
    """Refuse to use a named vector that is not the one ``expected`` describes.

    Args:
        schema: Of the collection.
        vector_name: The dense vector.
        expected: Contract of the model that makes or queries the vectors.

    Raises:
        InputError: The collection has no dense vector of that name.
        SchemaMismatch: Its dimension or distance differ.
        FingerprintMismatch: Another model made its vectors, or nothing says which did.
    """
    collection = schema.name
    if vector_name not in schema.dense:
        raise InputError(
            f"collection {collection!r} has no vector {vector_name!r} (it has: {_names(schema.dense)}); "
            f"{_makers(schema)}add it, with the same --model and --path/--url: "
            f"care attach {collection} --vector-name {vector_name}"
        )
    learned = schema.learned.get(vector_name)
    if learned is not None and learned.fingerprint == expected.fingerprint:
        check_learned(schema, vector_name, learned)
        return
    params = schema.dense[vector_name]
    if params.size != expected.dim or params.distance != expected.qdrant_distance:
        raise SchemaMismatch(
            f"vector {vector_name!r} of collection {collection!r} is {params.size}-dimensional with "
            f"{params.distance.value} distance; model {expected.model!r} needs {expected.dim} dimensions and "
            f"{expected.distance}. "
            "Use another --vector-name."
        )
    found = schema.contracts.get(vector_name)
    if found is None:
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {collection!r} carries no fingerprint: another tool wrote it, and "
            f"its space is unknown. Add model {expected.model!r} beside it under another name, with the same --model "
            "and --path/--url: "
            f"care attach {collection} --vector-name {expected.model}"
        )
    if found.fingerprint != expected.fingerprint:
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {collection!r} was made by {_maker(found)} "
            f"({found.fingerprint[:12]}), not by {expected.model} ({expected.fingerprint[:12]}). "
            "Give the model that made it with --model, or add this one beside it, with the same --model and "
            "--path/--url: "
            f"care attach {collection} --vector-name {expected.model}-{expected.fingerprint[:8]}"
        )


def check_sparse_contract(schema: "CollectionSchema", vector_name: str, analyser: str) -> SparseContract:
    """Return the constants of a sparse vector, and refuse one that another analyser wrote.

    Raises:
        InputError: The collection has no sparse vector of that name.
        SchemaMismatch: Qdrant does not weight its terms by their inverse document frequency.
        FingerprintMismatch: Another analyser made it, or nothing says which did.
    """
    where = f"sparse vector {vector_name!r} of collection {schema.name!r}"
    if vector_name not in schema.sparse:
        raise InputError(
            f"collection {schema.name!r} has no sparse vector {vector_name!r} (it has: {_names(schema.sparse)}); "
            "ingest the corpus with: --sparse bm25"
        )
    if schema.sparse[vector_name].modifier != models.Modifier.IDF:
        raise SchemaMismatch(f"{where} was created without the IDF modifier that BM25 needs; ingest into a new one")
    found = schema.contracts.get(vector_name)
    if not isinstance(found, SparseContract) or found.fingerprint != analyser:
        made_by = found.fingerprint if found is not None else "an unknown tool"
        raise FingerprintMismatch(
            f"{where} was cut into terms by {made_by}, not by {analyser}: its terms would not meet ours. "
            "Ingest the corpus again with --sparse bm25 into a new collection."
        )
    return found


def _parse(entry: Any) -> Contract:
    kind = _KINDS.get(entry.get("kind", "")) if isinstance(entry, Mapping) else None
    if kind is None:
        return UnreadableContract()
    known: dict[str, Any] = {key: value for key, value in entry.items() if key in kind.__dataclass_fields__}
    try:
        return kind(**known | {key: float(known[key]) for key in _FLOATS if key in known})
    except (TypeError, ValueError):
        return UnreadableContract()


def _maker(contract: Contract) -> str:
    if isinstance(contract, VectorContract):
        return contract.model
    return "a sparse encoder" if isinstance(contract, SparseContract) else "something this version cannot read"


def _makers(schema: "CollectionSchema") -> str:
    """Return the advice to take the model that made a vector of the collection; empty where none says who did."""
    made = {
        f"{name!r} was made by {contract.model} ({contract.fingerprint[:12]})"
        for name, contract in schema.contracts.items()
        if isinstance(contract, VectorContract)
    }
    return f"{', '.join(sorted(made))}: give that model with --model, or " if made else ""


def _names(vectors: Iterable[str]) -> str:
    return ", ".join("(unnamed)" if name == "" else name for name in sorted(vectors)) or "none"
