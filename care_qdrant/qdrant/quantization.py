"""The kinds of quantization: the size of the copy, and the settings that a server gets.

Options and their help read this table, so it imports no client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Quantization = Literal["int8", "turbo", "product", "binary"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A compressed copy of vectors, which a search reads first."""

    size: str
    """Size of the copy, as a part of float32 vectors."""
    settings: Mapping[str, Mapping[str, Any]]
    """Configuration in the words of Qdrant's API, without the field that says where the copy is held."""


QUANTIZATION: dict[Quantization, Kind] = {
    "int8": Kind("1/4", {"scalar": {"type": "int8", "quantile": 0.99}}),
    "turbo": Kind("1/8", {"turbo": {"bits": "bits4"}}),
    "product": Kind("1/16", {"product": {"compression": "x16"}}),
    "binary": Kind("1/32", {"binary": {}}),
}


def sizes_in_words() -> str:
    """Return the kinds with their sizes, for people."""
    *others, last = (f"{kind.size} ({name})" for name, kind in QUANTIZATION.items())
    return f"{', '.join(others)} or {last}"
