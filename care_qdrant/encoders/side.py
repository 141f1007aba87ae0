"""One side of a model: what its encoder does with a text, and how its vectors are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from care_qdrant.errors import InputError, ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNLIMITED = 2**31 - 1
"""Limit in tokens of an encoder that reads texts of any length."""
Geometry = Literal["unit", "cut"]
"""``unit``: both sides give vectors of length 1, compared by cosine. ``cut``: document vectors are normalised at the
full width of their encoder, then cut to the query dimension and not normalised again, so they are shorter than 1; the
score is the dot product. Under a cosine they would be normalised, and rank otherwise."""


def geometry_by(kinds: Sequence[str], similarity: str | None) -> Geometry:
    """Return the geometry of the vectors that modules of these kinds make, in order, for their saved similarity."""
    return "cut" if list(kinds[-2:]) == ["Normalize", "Dense"] and similarity == "dot" else "unit"


def static_limit(tokenizer: "Tokenizer") -> int:
    """Return the longest input of a static encoder in tokens: the truncation of its tokenizer, its only limit.

    Raises:
        ModelError: It cuts texts at their beginning.
    """
    if tokenizer.truncation is None:
        return UNLIMITED
    if tokenizer.truncation["direction"] != "right":
        raise ModelError("tokenizer.json cuts long texts at their beginning; save it with truncation at the end")
    return int(tokenizer.truncation["max_length"])


@dataclass(frozen=True, slots=True)
class Side:
    """The settings of one encoder: what it does with a text before and after its transformer."""

    pooling: str
    """``cls``, ``mean`` or ``lasttoken``; ``static`` for the plain mean of token vectors, without any layer;
    ``stored`` for a document side without weights."""
    max_tokens: int
    """Longest input, special tokens and prompt included; `UNLIMITED` for a static encoder that reads all."""
    prompt: str = ""
    eos: str | None = None
    """The marker that the tokenizer must append, for last-token pooling (paper, appendix G)."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """Prompts by the name of a task, which are used instead of ``prompt`` if a task is named."""

    @property
    def special_tokens(self) -> bool:
        """Whether the encoder reads the markers that its tokenizer puts around a text; a static one does not."""
        return self.pooling != "static"

    def task_prompt(self, task: str | None) -> str:
        """Return the prompt of a task; None is the side's own prompt."""
        if task is None:
            return self.prompt
        if task not in self.tasks:
            raise InputError(
                f"task {task!r} is unknown to this model; its tasks are: {', '.join(self.tasks) or 'none'}"
            )
        return self.tasks[task]
