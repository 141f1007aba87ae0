"""Protocols of an encoder: texts in, vectors of one space out."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from care_qdrant.types import Vectors

# The builds of onnxruntime 1.31 (not yet 1.23) keep a number of the device, and send events to Microsoft unless this is
# set before the import; see Privacy.md in that package. Nothing beside patients' records should ask a third party.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

MAX_CHARACTERS_PER_TOKEN = 64
"""Characters that an online encoder tokenises for each token of its limit; the rest of a longer text is not read: the
tokenizer holds the interpreter's lock for 4 s a million characters."""


class TokenCounter(Protocol):
    """Knows how long a text is for an encoder; needs its tokenizer and not its weights."""

    @property
    def max_tokens(self) -> int:
        """Longest input in tokens, special tokens and prompt included; the rest is cut off."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""


class Encoder(TokenCounter, Protocol):
    """Turns texts into vectors of one space. Implementations may be called from several threads."""

    @property
    def dim(self) -> int:
        """Length of each vector."""

    @property
    def prompt(self) -> str:
        """The model's own prompt, put before each text unless the caller gives another."""

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> "Vectors":
        """Encode texts into unit vectors.

        Args:
            texts: In any order.
            prompt: Put before each text; None takes the model's own.

        Returns:
            ``(len(texts), dim)`` float32, in the order of the texts, each row of length 1.
        """


@runtime_checkable
class TextReader(Protocol):
    """Knows which words of a text its tokenizer does not read."""

    def unread(self, text: str) -> list[str]:
        """Return the words that are not read, where they are most of a text; empty for one that is read."""
