"""Counts the tokens of an encoder without loading its weights."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer


class TokenizerFile:
    """The ``tokenizer.json`` of a saved model: cuts and counts like the encoder that it belongs to."""

    def __init__(self, path: Path, *, max_tokens: int, prompt: str = "") -> None:
        self.max_tokens, self._prompt = max_tokens, prompt
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Give the uncut length of each text in tokens, special tokens and prompt included."""
        return [len(self._tokenizer.encode(self._prompt + text).ids) for text in texts]
