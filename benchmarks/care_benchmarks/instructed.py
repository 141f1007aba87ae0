"""A pair that puts an instruction before each text of a side, and else is the pair."""

from collections.abc import Sequence

from care_benchmarks.instructions import Instructions, Kind
from care_qdrant.encoders import Encoder
from care_qdrant.model import CareModel
from care_qdrant.types import Vectors


class InstructedEncoder:
    """An encoder whose own prompt is another one."""

    def __init__(self, inner: Encoder, prompt: str) -> None:
        self._inner, self.prompt = inner, prompt
        self.dim, self.max_tokens = inner.dim, inner.max_tokens

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Give one unit vector per text, in order."""
        return self._inner.encode(texts, prompt=self.prompt if prompt is None else prompt)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Give the uncut length of each text, prompt included."""
        return self._inner.count_tokens([self.prompt + text for text in texts])


def with_instructions(model: CareModel, instructions: Instructions, kind: Kind) -> CareModel:
    """Give the pair with the instructions of one kind of task; the pair itself where there are none.

    The fingerprint stays that of the weights: collections of instructed documents are kept apart by their names.
    """
    query, document = (instructions.prompt(kind, side) for side in ("query", "document"))
    if query is None and document is None:
        return model
    return CareModel(
        name=model.name,
        dim=model.dim,
        fingerprint=model.fingerprint,
        temperature=model.temperature,
        load_query_encoder=lambda: _instructed(model.query_encoder, query),
        load_document_encoder=lambda: _instructed(model.document_encoder, document),
        load_document_tokenizer=(lambda: model.document_tokenizer) if document is None else None,
        card=model.card,
    )


def _instructed(encoder: Encoder, prompt: str | None) -> Encoder:
    return encoder if prompt is None else InstructedEncoder(encoder, prompt)
