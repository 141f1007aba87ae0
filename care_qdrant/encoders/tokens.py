"""Counts the tokens of an encoder without loading its weights."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from care_qdrant.encoders import TokenCounter


class TokenizerFile:
    """The ``tokenizer.json`` of a saved model: cuts and counts like the encoder that it belongs to."""

    def __init__(self, path: Path, *, max_tokens: int, prompt: str = "", special_tokens: bool = True) -> None:
        self.max_tokens, self._prompt, self._special_tokens = max_tokens, prompt, special_tokens
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        texts = [self._prompt + text for text in texts]
        return [len(self._tokenizer.encode(text, add_special_tokens=self._special_tokens).ids) for text in texts]


def reads_nothing(texts: Sequence[str], counter: TokenCounter) -> list[bool]:
    """Return for each text whether an encoder reads nothing in it, as in one of zero-width characters alone."""
    nothing, *lengths = counter.count_tokens(["", *texts])
    return [length <= nothing for length in lengths]


def uncut_length(encoding: Encoding, special_tokens: int) -> int:
    """Return the tokens that a text has, those that were cut off included."""
    parts = [encoding, *encoding.overflowing]
    return sum(len(part.ids) for part in parts) - special_tokens * (len(parts) - 1)
