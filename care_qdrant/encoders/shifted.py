"""A learned query encoder in the place of the document encoder: its vectors, moved among the stored ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from care_qdrant.encoders import Encoder
from care_qdrant.encoders.ahead import alike_of, calls_of
from care_qdrant.types import Vectors


@dataclass(frozen=True, slots=True)
class ShiftedEncoder:
    """An encoder whose vectors are moved by a fixed vector, and then normalised again."""

    encoder: Encoder
    shift: Vectors
    """Shape (dim,)."""

    @property
    def dim(self) -> int:
        """Length of each vector."""
        return self.encoder.dim

    @property
    def max_tokens(self) -> int:
        """Longest input in tokens."""
        return self.encoder.max_tokens

    @property
    def prompt(self) -> str:
        """Prompt of the encoder."""
        return self.encoder.prompt

    @property
    def calls(self) -> int:
        """Calls that can run at a time."""
        return calls_of(self.encoder)

    @property
    def alike(self) -> float:
        """How alike in length the texts of a call should be."""
        return alike_of(self.encoder)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens."""
        return self.encoder.count_tokens(texts)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts into unit vectors, in order: ``(len(texts), dim)`` float32."""
        moved = self.encoder.encode(texts, prompt=prompt) + self.shift
        return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), dtype=np.float32)
