"""Datatypes and kinds of quantization with which a server stores vectors.

Options and their help read this table, so it imports no client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Quantization = Literal["int8", "turbo", "product", "binary"]
StoredDatatype = Literal["float32", "float16"]
"""Datatypes that a new collection can have; existing collections may have any of `DATATYPES`."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype of stored vectors."""

    bytes_per_number: float
    """Size of one component, without search graph and quantization."""
    rounding: float = 1e-6
    """Difference that storing a vector may make, relative to its largest number; the default is that of normalising
    twice in float32."""


DATATYPES = {
    "float32": Datatype(4),
    "float16": Datatype(2, rounding=2e-3),
    # Too coarse to compare: a copy of such vectors is refused unless the server returns the same numbers.
    "uint8": Datatype(1),
    "turbo4": Datatype(0.5),
    "turbo8": Datatype(1),
    "turbo16": Datatype(2),
}
"""The datatypes of Qdrant."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A compressed copy of vectors, which a search reads first."""

    size: str
    """Size of the copy, as a part of float32 vectors."""
    settings: Mapping[str, Mapping[str, Any]]
    """Configuration as Qdrant's API takes it, without the field that says where the copy is stored."""


QUANTIZATION: dict[Quantization, Kind] = {
    "int8": Kind("1/4", {"scalar": {"type": "int8", "quantile": 0.99}}),
    "turbo": Kind("1/8", {"turbo": {"bits": "bits4"}}),
    "product": Kind("1/16", {"product": {"compression": "x16"}}),
    "binary": Kind("1/32", {"binary": {}}),
}


def sizes_in_words() -> str:
    """Return the kinds with their sizes as text for option help."""
    *others, last = (f"{kind.size} ({name})" for name, kind in QUANTIZATION.items())
    return f"{', '.join(others)} or {last}"
