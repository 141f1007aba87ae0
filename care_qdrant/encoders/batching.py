"""Batches of equal cost: padding is paid for like text, so texts of one length belong together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from tokenizers import Encoding, Tokenizer

from care_qdrant.encoders.local.weights import reading_folder
from care_qdrant.encoders.side import Side
from care_qdrant.encoders.unread import UnreadWords
from care_qdrant.encoders.usable import as_encoded
from care_qdrant.errors import IncompleteModel, ModelError, UnusableText

ALIKE = 0.97
"""Shortest text of a batch, as a fraction of its longest, once there are enough of them."""
T = TypeVar("T")


@contextmanager
def tokenizer_errors() -> Iterator[None]:
    """Raise `ValueError` for the errors of tokenizers: bare ``Exception``, and panics of its Rust code, which are none.

    A panic passes every handler of exceptions, and ends threads.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error


def tokenised(texts: Sequence[str], read: Callable[[str], T]) -> list[T]:
    """Return what a tokenizer makes of each text.

    Raises:
        UnusableText: It fails on some of them, such as those with a character that it does not know.
    """
    made: list[T] = []
    problems: dict[int, str] = {}
    for place, text in enumerate(texts):
        try:
            with tokenizer_errors():
                made.append(read(text))
        except ValueError as error:
            problems[place] = f"({text[:40]!r}) makes the tokenizer of the model fail ({error})"
    if problems:
        raise UnusableText(problems)
    return made


def read_tokenizer(folder: Path) -> Tokenizer:
    """Load the ``tokenizer.json`` of a saved model, with the truncation and the padding that it was saved with.

    Raises:
        IncompleteModel: The file is missing.
        ModelError: It is not a tokenizer, or one that fails at every text.
    """
    path = reading_folder(folder) / "tokenizer.json"
    if not path.is_file():
        raise IncompleteModel(f"{path} is missing; save the model again, with a fast tokenizer")
    try:
        with tokenizer_errors():
            tokenizer = Tokenizer.from_file(str(path))
            with suppress(Exception):  # of this text alone, such as an unknown character
                tokenizer.encode("a")
    except ValueError as error:
        raise ModelError(f"{path}: is not a tokenizer that this version reads ({error})") from error
    return tokenizer


class TokenizerFile:
    """The tokenizer of a saved model: cuts and counts like the encoder that it belongs to.

    Used by several threads: it does not change after ``__init__``.
    """

    def __init__(self, folder: Path, side: Side) -> None:
        self.max_tokens, self._side = side.max_tokens, side
        self._tokenizer = read_tokenizer(folder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._unread = UnreadWords(self._tokenizer)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        prompt, special = self._side.prompt, self._side.special_tokens
        return tokenised(
            as_encoded(texts), lambda text: len(self._tokenizer.encode(prompt + text, add_special_tokens=special).ids)
        )

    def unread(self, text: str) -> list[str]:
        """Return the words that the tokenizer does not read, where they are most of the beginning of a text."""
        beginning = text[: 4 * self.max_tokens]
        return unread_words(self._unread, beginning, partial(self._tokenizer.encode, add_special_tokens=False))


def unread_words(unread: UnreadWords, text: str, read: Callable[[str], Encoding]) -> list[str]:
    """Return the words of a text that its tokenizer does not read: all of them where it fails on the text."""
    text = text.encode(errors="ignore").decode()  # half characters are no words
    try:
        [encoding] = tokenised([text], read)
    except UnusableText:
        return text.split()
    return unread(text, encoding)


def uncut_length(encoding: Encoding, special_tokens: int) -> int:
    """Return the number of tokens of a text, including tokens that were cut off."""
    parts = [encoding, *encoding.overflowing]
    return sum(len(part.ids) for part in parts) - special_tokens * (len(parts) - 1)


def token_batches(
    lengths: Sequence[int], batch_tokens: int, *, alike: float = ALIKE, equal: bool = False
) -> Iterator[list[int]]:
    """Yield batches of indices, longest texts first, none with more than ``batch_tokens`` padded tokens.

    The longest come first so that memory runs out at once or never. A text longer than the budget is a batch of its
    own.

    Args:
        lengths: Tokens of each text.
        batch_tokens: Padded tokens of one batch: its longest text times its number of texts.
        alike: Shortest text of a batch that is a quarter full, as a fraction of its longest; 0 fills every batch. Where
            texts are padded, those that are shorter cost more in it than a larger batch gains.
        equal: Whether all texts of a batch must have one length, because padding would change their vectors.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[batch[0]] if batch else lengths[index]
        is_full = longest * (len(batch) + 1) > batch_tokens
        is_enough = 4 * longest * len(batch) >= batch_tokens and lengths[index] < alike * longest
        if batch and (is_full or is_enough or (equal and lengths[index] < longest)):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


class Budget:
    """Padded tokens of one forward pass: halved where memory runs out, then raised to the largest that fits."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self._most = tokens, tokens
        self.exceeded = 0
        """Number of times that memory ran out."""

    def halve(self, padded: int) -> None:
        """Take half of a batch that did not fit."""
        self._most = max(1, min(self._most, padded - 1))
        self.tokens = max(1, padded // 2)
        self.exceeded += 1

    def fits(self, padded: int) -> None:
        """Note a batch that fitted; if it filled the budget, raise that halfway to the largest that may fit."""
        if self.tokens < self._most and padded > 0.9 * self.tokens and self._most - padded > self._most // 8:
            self.tokens = (padded + self._most + 1) // 2
