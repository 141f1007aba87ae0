"""The contract of a query encoder that was learned from stored vectors: which vectors it may search.

The tool that wrote those vectors knows nothing of us, so nothing but the vectors themselves tells when another model
replaces them. The contract therefore keeps the signs of a few stored vectors' coordinates, by point id: the same model
gives the same signs again, an edited text moves some of them, and another model agrees on half of them by chance.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from care_qdrant import __version__
from care_qdrant.errors import FingerprintMismatch, SchemaMismatch
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from care_qdrant.store.schema import CollectionSchema

LEARNED_PREFIX = "care-learned:"
PROBES = 16
"""Stored vectors whose signs a contract keeps."""
_MAX_CHANGED_SIGNS = 0.3
"""Fraction of a vector's signs; from here on it counts as made by another model."""


@dataclass(frozen=True, slots=True)
class LearnedContract:
    """What a collection keeps about a query encoder that was learned from one of its dense vectors."""

    fingerprint: str
    """Of the CARE folder of the query encoder."""
    model: str
    dim: int
    distance: str
    """Of the vector when the encoder was learned."""
    probes: Mapping[str, str]
    """Point id → signs of the stored vector's coordinates, eight to a byte, in hexadecimal digits."""
    documents: str | None = None
    """Fingerprint of the vector's own contract, where it has one."""
    alpha: float | None = None
    """Share of the dense score in a linear fusion with BM25 that suits this encoder's scores."""
    tool_version: str = __version__


def learned_metadata(vector_name: str, contract: LearnedContract | None) -> dict[str, Any]:
    """Return the metadata update that writes a contract, or removes it when it is None."""
    entry = None if contract is None else {key: value for key, value in asdict(contract).items() if value is not None}
    if entry is not None and "alpha" in entry:
        entry["alpha"] = repr(entry["alpha"])
    return {f"{LEARNED_PREFIX}{vector_name}": entry}


def parse_learned(metadata: Mapping[str, Any]) -> dict[str, LearnedContract]:
    """Return the learned contract of each vector that carries one which this version can read."""
    known = {field.name for field in fields(LearnedContract)}
    found = {}
    for key, entry in metadata.items():
        if key.startswith(LEARNED_PREFIX) and isinstance(entry, Mapping):
            values = {name: value for name, value in entry.items() if name in known}
            if "alpha" in values:
                values["alpha"] = float(values["alpha"])
            try:
                found[key.removeprefix(LEARNED_PREFIX)] = LearnedContract(**values)
            except TypeError:  # a field is missing: written by a newer version
                continue
    return found


def signs(vector: Vectors) -> str:
    """Return the signs of a vector's coordinates as `LearnedContract.probes` keeps them."""
    return np.packbits(vector > 0).tobytes().hex()


def stored_vector(vectors: Any, vector_name: str) -> Vectors | None:
    """Return the dense vector of a record as float32; None where it has none that is finite and of some length."""
    found = vectors.get(vector_name) if isinstance(vectors, Mapping) else vectors
    if not isinstance(found, list) or not found:
        return None
    vector = np.array(found, dtype=np.float32)
    norm = float(np.linalg.norm(vector)) if vector.ndim == 1 else 0.0
    return vector if np.isfinite(norm) and norm > 1e-9 else None


def check_learned(schema: "CollectionSchema", vector_name: str, learned: LearnedContract) -> None:
    """Refuse a learned query encoder where the schema says that the vectors are no longer those it was learned from.

    Raises:
        SchemaMismatch: Dimension or distance differ.
        FingerprintMismatch: The vector's own contract names another model than it did.
    """
    params = schema.dense[vector_name]
    where = f"vector {vector_name!r} of collection {schema.name!r}"
    if (params.size, params.distance.value) != (learned.dim, learned.distance):
        raise SchemaMismatch(
            f"{where} is {params.size}-dimensional with {params.distance.value} distance; query encoder "
            f"{learned.model!r} was learned from {learned.dim} dimensions and {learned.distance}. {_again(schema)}"
        )
    found = schema.contracts.get(vector_name)
    documents = None if found is None else found.fingerprint
    if documents != learned.documents:
        raise FingerprintMismatch(
            f"{where} has got another model since query encoder {learned.model!r} was learned from it "
            f"({(documents or 'unknown')[:12]}, then {(learned.documents or 'unknown')[:12]}). {_again(schema)}"
        )


def check_probes(
    schema: "CollectionSchema", vector_name: str, learned: LearnedContract, stored: Mapping[str, Vectors]
) -> None:
    """Refuse a learned query encoder where most sampled vectors were made by another model than before.

    Args:
        schema: Of the collection.
        vector_name: Of the dense vector.
        learned: Contract of the query encoder.
        stored: Vectors that the probes have now, by point id; those of deleted points are left out.

    Raises:
        FingerprintMismatch: More than half of the sampled vectors differ, or none of their points is left.
    """
    changed = sum(_changed(learned.probes[point_id], vector) for point_id, vector in stored.items())
    if changed * 2 > len(stored) or not stored:
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {schema.name!r}: of {len(learned.probes)} sampled vectors "
            f"{len(stored)} are left and {changed} are other vectors than when query encoder {learned.model!r} was "
            f"learned, so another model may have made them. {_again(schema)}"
        )


def _changed(before: str, vector: Vectors) -> bool:
    now = np.frombuffer(bytes.fromhex(signs(vector)), np.uint8)
    then = np.frombuffer(bytes.fromhex(before), np.uint8)
    return now.shape != then.shape or int(np.bitwise_count(now ^ then).sum()) > _MAX_CHANGED_SIGNS * len(vector)


def _again(schema: "CollectionSchema") -> str:
    return f"Learn it anew: care learn {schema.name}"
