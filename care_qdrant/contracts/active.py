"""Which vector of a collection its readers search, and the model of their queries: the record of ``care switch``."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from care_qdrant.contracts.metadata import ACTIVE


@dataclass(frozen=True, slots=True)
class SearchedVector:
    """A dense vector, and the model whose queries search it."""

    vector: str
    """Name of the vector; empty for the unnamed one."""
    model: str = "a model that is not known"
    fingerprint: str | None = None
    """Fingerprint of the model of the queries; None where another tool makes them."""


@dataclass(frozen=True, slots=True)
class Active:
    """The vector that readers search now, and the one before the last switch."""

    now: SearchedVector
    since: str
    """Time of the switch, in UTC."""
    before: SearchedVector | None = None
    """Vector to which a rollback returns; None once it was retired."""
    is_rolled_back: bool = False
    evidence: Mapping[str, str] = field(default_factory=dict)
    """Result of the comparison that the switch followed."""


_ACTIVE = TypeAdapter(Active)


def active_metadata(active: Active) -> dict[str, Any]:
    """Return the metadata update that makes a vector the active one."""
    return ACTIVE.change(asdict(active))


def parse_active(metadata: Mapping[str, Any]) -> Active | None:
    """Return the record of the active vector; None without one that this version can read."""
    with suppress(ValidationError):
        return _ACTIVE.validate_python(ACTIVE.find(metadata))
    return None
