"""The tokenizer of a learned query encoder, and texts as token numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from care_qdrant.types import Vectors

Numbers = npt.NDArray[np.int64]

PADDING, UNKNOWN = "[PAD]", "[UNK]"
_SEPARATORS = Regex(r"[^\p{L}\p{N}\p{M}]+")
_UNITS = Regex(r"\d|[a-z]+")
"""A digit and a Latin word stand alone; what is left between them are runs of letters of other scripts."""
_MAX_PIECE_CHARACTERS = 8
_MIN_OCCURRENCES = 2
_PIECE_TEXTS = 4_096

_UNSEEN = 1e-3
"""Length of the vector of a token without any trained part, in that of an average one: an unknown word alone then finds
something average instead of ending in a division by zero."""


def train_tokenizer(texts: Sequence[str], vocabulary: int, max_tokens: int) -> Tokenizer:
    """Train a byte-pair tokenizer on the texts of a collection, whatever their language."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_SEPARATORS, "removed"), pre_tokenizers.Split(_UNITS, "isolated")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PADDING, UNKNOWN],
        min_frequency=_MIN_OCCURRENCES,
        max_token_length=_MAX_PIECE_CHARACTERS,
        limit_alphabet=vocabulary // 2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


@dataclass(frozen=True, slots=True)
class TokenLists:
    """Texts as token numbers, one after the other."""

    flat: Numbers
    """All token numbers, shape (tokens,)."""
    starts: Numbers
    """Where each text begins, and the end of the last one, shape (texts + 1,)."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Numbers:
        """Tokens of each text, shape (texts,)."""
        return np.diff(self.starts)

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "TokenLists":
        """Return texts that are given as lists of token numbers."""
        flat = np.fromiter((number for numbers in lists for number in numbers), dtype=np.int64)
        return cls(flat, _running_total([len(numbers) for numbers in lists]))

    def joined(self, other: "TokenLists") -> "TokenLists":
        """Return these texts and then those of another list."""
        return TokenLists(
            np.concatenate([self.flat, other.flat]), np.concatenate([self.starts, other.starts[1:] + self.starts[-1]])
        )

    def take(self, rows: npt.NDArray[np.integer]) -> "TokenLists":
        """Return the texts of some rows, in that order."""
        lengths = self.lengths[rows]
        starts = _running_total(lengths)
        places = np.arange(starts[-1]) - np.repeat(starts[:-1] - self.starts[rows], lengths)
        return TokenLists(self.flat[places], starts)

    def first(self, count: int) -> "TokenLists":
        """Return the beginnings of the texts, at most so many tokens of each."""
        places = np.arange(len(self.flat)) - np.repeat(self.starts[:-1], self.lengths)
        return TokenLists(self.flat[places < count], _running_total(np.minimum(self.lengths, count)))

    def drop(self, fraction: float, generator: np.random.Generator) -> "TokenLists":
        """Return the texts without a random fraction of their tokens; a text keeps at least its first."""
        kept = generator.random(len(self.flat)) >= fraction
        emptied = (np.diff(_running_total(kept)[self.starts]) == 0) & (self.lengths > 0)
        kept[self.starts[:-1][emptied]] = True
        return TokenLists(self.flat[kept], _running_total(kept)[self.starts])


def tokenize(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenLists:
    """Return texts as token numbers, without the markers of the tokenizer."""
    return TokenLists.of(
        [
            encoding.ids
            for piece in _pieces(list(texts))
            for encoding in tokenizer.encode_batch_fast(piece, add_special_tokens=False)
        ]
    )


def _pieces(texts: Sequence[str]) -> Iterable[Sequence[str]]:
    return (texts[start : start + _PIECE_TEXTS] for start in range(0, len(texts), _PIECE_TEXTS))


def _running_total(values: npt.ArrayLike) -> Numbers:
    return np.concatenate([[0], np.cumsum(np.asarray(values, dtype=np.int64))]).astype(np.int64)


def parts_of_tokens(tokenizer: Tokenizer, *, parts: bool) -> list[list[int]]:
    """Return the tokens that make up each token: itself and, with ``parts``, for a longer piece its characters."""
    vocabulary = tokenizer.get_vocab()
    lists = [[number] for number in range(tokenizer.get_vocab_size())]
    for token, number in vocabulary.items() if parts else ():
        plain = token.removeprefix("##")
        if len(plain) > 1 and not token.startswith("["):
            lists[number] += [vocabulary[character] for character in plain if character in vocabulary]
    return lists


class Composer:
    """Turns tokens into their parts, and a table of parts into a table of tokens."""

    def __init__(self, tokenizer: Tokenizer, *, parts: bool = True) -> None:
        """Read the vocabulary of a tokenizer."""
        self._parts = TokenLists.of(parts_of_tokens(tokenizer, parts=parts))

    def expand(self, tokens: TokenLists) -> TokenLists:
        """Return texts as the parts of their tokens."""
        expanded = self._parts.take(tokens.flat)
        return TokenLists(expanded.flat, expanded.starts[tokens.starts])

    def fold(self, table: Vectors, mean: Vectors) -> Vectors:
        """Return the table whose rows are the sums of their parts."""
        folded = self._sums(table)
        lengths = np.linalg.norm(folded, axis=1)
        empty = lengths < 1e-9
        average = float(lengths[~empty].mean()) if not empty.all() else 1.0
        folded[empty] = _UNSEEN * average * mean / max(float(np.linalg.norm(mean)), 1e-9)
        return folded

    def unfold(self, table: Vectors) -> Vectors:
        """Return the table of parts whose `fold` is the given table."""
        own = np.asarray(table, dtype=np.float32)
        return own - (self._sums(np.where(self._is_whole[:, None], own, np.float32(0))) - own * self._is_whole[:, None])

    @property
    def _is_whole(self) -> npt.NDArray[np.bool_]:
        """Whether a token has no parts but itself, (tokens,)."""
        return np.asarray(self._parts.lengths == 1)

    def _sums(self, table: Vectors) -> Vectors:
        return np.asarray(np.add.reduceat(table[self._parts.flat], self._parts.starts[:-1], axis=0), dtype=np.float32)
