"""The paper's instructions per task (Table 8), and on which side they are used.

The paper prints the sentences, but neither the words around them nor whether the small query encoder saw them. So
they are off unless asked for, per side, and the template is an option; every result records what was used.
"""

from dataclasses import dataclass
from string import Formatter
from typing import Literal

from care_qdrant.errors import InputError

Kind = Literal["retrieval", "rerank", "sts"]
Side = Literal["query", "document"]

RANK = (
    "Based on a Chinese medical question, evaluate and rank the medical information that provide answers to the "
    "question."
)
TABLE_8: dict[Kind, str] = {
    "retrieval": "Given a Chinese medical question, retrieve medical documents that answer the question.",
    "rerank": RANK,
    "sts": "Retrieve semantically similar text.",
}
"""Table 8 of the paper, word by word. The two CMedQA tasks use the sentence of ``rerank``."""

QWEN3_TEMPLATE = "Instruct: {instruction}\nQuery:"
"""What the Qwen3 embedding models put around an instruction."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """Which sides of a task get the paper's instruction in front of each text."""

    query: bool = False
    document: bool = False
    template: str = QWEN3_TEMPLATE
    """With ``{instruction}`` where the sentence goes."""

    def __post_init__(self) -> None:
        """Look at the template before a model is loaded for it.

        Raises:
            InputError: there is no place for the sentence in it, or other ones.
        """
        fields = {name for _, name, _, _ in Formatter().parse(self.template) if name is not None}
        if fields != {"instruction"}:
            raise InputError(
                f"instruction template {self.template!r} must have {{instruction}} in it, and no other braces"
            )

    def prompt(self, kind: Kind, side: Side) -> str | None:
        """Give what stands before each text of one side; None leaves the model's own prompt in place."""
        wanted = self.query if side == "query" else self.document
        return self.template.format(instruction=TABLE_8[kind]) if wanted else None
