"""The contract of a query encoder that was learned from stored vectors: which vectors it may search.

The tool that wrote those vectors knows nothing of us, so nothing but the vectors themselves tells when another model
replaces them. The contract therefore keeps the signs of a few stored vectors' coordinates, by point id: the same model
gives the same signs again, an edited text moves some of them, and another model agrees on half of them by chance.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from uuid import UUID

import numpy as np
from qdrant_client import models

from care_qdrant.types import Vectors
from care_qdrant.version import __version__

LEARNED_PREFIX = "care-learned:"
PROBES = 16
"""Stored vectors whose signs a contract keeps."""


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
            try:
                alpha = float(values["alpha"]) if "alpha" in values else None
                found[key.removeprefix(LEARNED_PREFIX)] = LearnedContract(**values | {"alpha": alpha})
            except (TypeError, ValueError):  # a field is missing or of another kind: not written by this version
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


def probe_ids(learned: LearnedContract) -> list[int | str | UUID]:
    """Return the ids of the sampled points; a JSON key of digits stands for an integer, any other for a UUID."""
    return [int(key) if key.isdecimal() else key for key in learned.probes]


def probe_vectors(records: Iterable[models.Record], vector_name: str) -> dict[str, Vectors]:
    """Return the vectors of sampled points by id, without those that have none."""
    stored = {str(record.id): stored_vector(record.vector, vector_name) for record in records}
    return {key: vector for key, vector in stored.items() if vector is not None}
