"""The record of documents whose vectors a learned query encoder made, in place of a model that no longer exists.

Such vectors lie in the same space as the others and are worse. So the collection records under
``care_stand_in:<vector name>`` which encoders have made some, and each point that has one lists its encoder's
fingerprint under ``_care.stand_ins``: these points can be counted, are never learned from, and are encoded again as
soon as a document encoder of that space is back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.metadata import STAND_IN
from care_qdrant.types import CARE_KEY

STAND_INS = "stand_ins"
"""Key of a point's list of fingerprints, below `CARE_KEY`."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """A learned query encoder that encodes documents of a vector that another model made."""

    fingerprint: str
    model: str
    instead_of: str | None
    """Fingerprint of the model that made the other vectors; None where another tool wrote them."""


def stand_in_metadata(vector_name: str, encoders: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the metadata update that records the encoders of a vector, or removes the record when it is None."""
    return STAND_IN.change(None if encoders is None else {"encoders": dict(encoders)}, vector_name)


def parse_stand_ins(metadata: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the names of the encoders that stood in for each vector, by their fingerprints."""
    return {
        name: {str(key): str(model) for key, model in entry["encoders"].items()}
        for name, entry in STAND_IN.all(metadata).items()
        if isinstance(entry, Mapping) and isinstance(entry.get("encoders"), Mapping)
    }


def stand_ins(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fingerprints of the learned encoders that made vectors of a point."""
    care = payload.get(CARE_KEY)
    fingerprints = care.get(STAND_INS) if isinstance(care, Mapping) else None
    return tuple(map(str, fingerprints)) if isinstance(fingerprints, list) else ()


def made_by(encoders: Iterable[str]) -> models.Filter:
    """Return a filter for points with a vector by one of these encoders."""
    match = models.MatchAny(any=list(encoders))
    return models.Filter(must=[models.FieldCondition(key=f"{CARE_KEY}.{STAND_INS}", match=match)])
