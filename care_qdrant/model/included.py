"""The models inside this package. To add one: its CARE folder inside the package, and one entry here.

What depends on the languages of a model comes from the model. Its card keeps reference texts with their vectors, given
at export: the service answers them before it is ready. Its tokenizer tells which texts it reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BUILT_IN = "built-in"
"""Name of the model that is used where none is given."""


@dataclass(frozen=True, slots=True)
class IncludedModel:
    """A model inside this package."""

    folder: Path
    light_documents: bool
    """Whether every service encodes documents with it: the document encoder needs neither torch nor much memory."""


INCLUDED: Mapping[str, IncludedModel] = {
    BUILT_IN: IncludedModel(Path(__file__).parents[1] / "builtin", light_documents=True),
}
"""Included models by the name that stands for a folder in ``--model`` and `CareModel.load`."""


def included(source: str | Path) -> IncludedModel | None:
    """Return the included model of a name; None for any other source of a model."""
    return INCLUDED.get(source) if isinstance(source, str) else None
