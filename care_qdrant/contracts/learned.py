"""The contract of a query encoder that was learned from stored vectors: which vectors it may search.

The tool that wrote those vectors knows nothing of us, so only the vectors themselves show that another model has
replaced them. The contract therefore keeps the signs of a few stored vectors' coordinates, by point id: a vector that
was not rewritten has the same signs. A rewritten vector is compared with its text by the learned encoder: the same
model's new vector still agrees with the text, another model's does not.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
from pydantic import StringConstraints, TypeAdapter, ValidationError
from qdrant_client import models

from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.contracts.metadata import LEARNED
from care_qdrant.errors import InputError
from care_qdrant.types import Vectors
from care_qdrant.version import __version__

PROBES = 32
"""Stored vectors whose signs a contract keeps: with one foreign vector in ten, they miss it in 3 % of the cases."""
SIGNS = 512
"""Coordinates of a vector whose signs are kept at most, so that a wide vector's contract stays small."""


@dataclass(frozen=True, slots=True)
class LearnedContract:
    """Record of a query encoder that was learned from a dense vector: the vectors that it may search."""

    fingerprint: str
    """Fingerprint of the CARE folder of the query encoder."""
    model: str
    dim: int
    distance: str
    """Distance of the vector when the encoder was learned."""
    probes: Mapping[str, Annotated[str, StringConstraints(pattern=r"^([0-9a-fA-F]{2})+$")]]
    """Point id → signs of the stored vector's coordinates, eight to a byte, in hexadecimal digits."""
    documents: str | None = None
    """Fingerprint of the vector's own contract, where it has one."""
    alpha: float | None = None
    """Share of the dense score in a linear fusion with BM25 that suits this encoder's scores."""
    hnsw_ef: int | None = None
    """Width of a graph search that its queries need; None where the server's default is enough or was not measured."""
    text_field: str | None = None
    """Payload field of the texts that it was learned from; None where an earlier version wrote the contract."""
    held_out_deviations: str | None = None
    """Quantiles 0, 5, …, 100 % of the deviations above the mean that the best documents of held-out questions score."""
    tool_version: str = __version__


_LEARNED = TypeAdapter(LearnedContract)


def learned_metadata(vector_name: str, contract: LearnedContract | None) -> dict[str, Any]:
    """Return the metadata update that writes a contract, or removes it when it is None."""
    entry = None if contract is None else {key: value for key, value in asdict(contract).items() if value is not None}
    if entry is not None and "alpha" in entry:
        entry["alpha"] = repr(entry["alpha"])
    return LEARNED.change(entry, vector_name)


def parse_learned(metadata: Mapping[str, Any]) -> dict[str, LearnedContract]:
    """Return the learned contract of each vector that carries one this version can read."""
    contracts = {}
    for name, entry in LEARNED.all(metadata).items():
        with suppress(ValidationError):  # a field is missing or of another kind: not written by this version
            contracts[name] = _LEARNED.validate_python(entry)
    return contracts


def signs(vector: Vectors) -> str:
    """Return the signs of a vector's coordinates as `LearnedContract.probes` keeps them."""
    return np.packbits(vector[:SIGNS] > 0).tobytes().hex()


def agreement(queries: Vectors, vectors: Vectors) -> npt.NDArray[np.float64]:
    """Return how far the product of each stored vector with its own text stands out among those with other texts."""
    scores = queries.astype(np.float64) @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    scores -= scores.mean(axis=0)
    scores -= scores.mean(axis=1, keepdims=True)  # what a text or a vector shares with all others is no evidence
    own = scores.diagonal().copy()
    np.fill_diagonal(scores, np.nan)
    return np.asarray((own - np.nanmean(scores, axis=0)) / np.maximum(np.nanstd(scores, axis=0), 1e-12))


def stored_vector(vectors: Any, vector_name: str) -> Vectors | None:
    """Return the dense vector of a record as float32; None unless it has one that is finite and not zero."""
    numbers = vectors.get(vector_name) if isinstance(vectors, Mapping) else vectors
    if not isinstance(numbers, list) or not numbers:
        return None
    vector = np.array(numbers, dtype=np.float32)
    norm = float(np.linalg.norm(vector)) if vector.ndim == 1 else 0.0
    return vector if np.isfinite(norm) and norm > 1e-9 else None


def probe_ids(learned: LearnedContract) -> list[int | str | UUID]:
    """Return the ids of the sampled points; a JSON key of digits stands for an integer, any other for a UUID."""
    return [int(key) if key.isdecimal() else key for key in learned.probes]


def probe_texts(records: Iterable[models.Record], learned: LearnedContract) -> dict[str, str]:
    """Return the texts of sampled points by id; points without a text are left out."""
    payloads = {str(record.id): record.payload or {} for record in records}
    try:
        layout = guess_layout(list(payloads.values()), text_field=learned.text_field)
    except InputError:  # no point has a text any more
        return {}
    return {key: text for key, payload in payloads.items() if (text := layout.find_text(payload)) is not None}


def probe_vectors(records: Iterable[models.Record], vector_name: str) -> dict[str, Vectors]:
    """Return the vectors of sampled points by id, without those that have none."""
    stored = {str(record.id): stored_vector(record.vector, vector_name) for record in records}
    return {key: vector for key, vector in stored.items() if vector is not None}
