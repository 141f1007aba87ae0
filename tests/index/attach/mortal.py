"""A model that dies while it encodes."""

from collections.abc import Sequence

from care_qdrant.types import Vectors
from tests.tiny import HashEncoder, HashModel


class Killed(BaseException):
    """Ends a run without any of its clean-up being asked for."""


class MortalModel(HashModel):
    """Encodes a few batches and then dies."""

    def __init__(self, batches: int) -> None:
        super().__init__(name="care")
        self._encoder = _MortalEncoder(batches)


class _MortalEncoder(HashEncoder):
    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        if not self.left:
            raise Killed
        self.left -= 1
        return super().encode(texts, prompt=prompt)
