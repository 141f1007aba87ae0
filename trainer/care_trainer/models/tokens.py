"""Texts as token numbers, tokens as sums of their parts, and the byte-pair tokenizers that are trained on texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from care_qdrant.types import Vectors

Numbers = npt.NDArray[np.int64]

PADDING, UNKNOWN = "[PAD]", "[UNK]"
_SEPARATORS = Regex(r"[^\p{L}\p{N}\p{M}]+")
_UNITS = Regex(r"\d|[a-z]+")
"""A digit and a Latin word stand alone; what is left between them are runs of letters of other scripts."""
_PIECE_TEXTS = 4_096


def train_collection_tokenizer(texts: Sequence[str], vocabulary: int, max_tokens: int) -> Tokenizer:
    """Train a byte-pair tokenizer on the texts of a collection, in any language."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_SEPARATORS, "removed"), pre_tokenizers.Split(_UNITS, "isolated")]
    )
    train_pieces(tokenizer, texts, vocabulary, [PADDING, UNKNOWN], max_characters=8)
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def train_pieces(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    vocabulary: int,
    special: Sequence[str],
    *,
    max_characters: int,
    min_occurrences: int = 2,
    alphabet: Sequence[str] = (),
) -> None:
    """Train the pieces of a byte-pair tokenizer; half of the vocabulary at most are single characters."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        min_frequency=min_occurrences,
        max_token_length=max_characters,
        initial_alphabet=list(alphabet),
        limit_alphabet=len(alphabet) or vocabulary // 2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


@dataclass(frozen=True, slots=True)
class TokenLists:
    """Texts as token numbers, one after the other."""

    flat: Numbers
    """All token numbers, shape (tokens,)."""
    starts: Numbers
    """Offset of the beginning of each text, and of the end of the last one, shape (texts + 1,)."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Numbers:
        """Tokens of each text, shape (texts,)."""
        return np.diff(self.starts)

    def counts(self, vocabulary: int) -> Numbers:
        """Return how often each token occurs, shape (vocabulary,)."""
        return np.bincount(self.flat, minlength=vocabulary)

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "TokenLists":
        """Create texts from lists of token numbers."""
        flat = np.fromiter((number for numbers in lists for number in numbers), dtype=np.int64)
        return cls(flat, _running_total([len(numbers) for numbers in lists]))

    def sums(self, table: Vectors) -> Vectors:
        """Return the sum of the token vectors of each text, (texts, width)."""
        return np.asarray(self.matrix(len(table)) @ table, dtype=np.float32)

    def matrix(self, vocabulary: int) -> csr_matrix:
        """Return how often each text has each token, (texts, vocabulary)."""
        ones = np.ones(len(self.flat), dtype=np.float32)
        return csr_matrix((ones, self.flat, self.starts), shape=(len(self), vocabulary))

    def joined(self, other: "TokenLists") -> "TokenLists":
        """Return these texts followed by the texts of another list."""
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
    texts, lists = list(texts), list[list[int]]()
    for start in range(0, len(texts), _PIECE_TEXTS):
        encodings = tokenizer.encode_batch_fast(texts[start : start + _PIECE_TEXTS], add_special_tokens=False)
        lists += [encoding.ids for encoding in encodings]
    return TokenLists.of(lists)


def _running_total(values: npt.ArrayLike) -> Numbers:
    return np.concatenate([[0], np.cumsum(np.asarray(values, dtype=np.int64))]).astype(np.int64)


def rarity(counts: Numbers) -> npt.NDArray[np.float64]:
    """Return the logarithm of each token's inverse frequency, divided by its mean, (vocabulary,), from its counts."""
    # The added constant keeps the weight of a rarely seen token from being extreme.
    logarithms = np.maximum(0.1, np.log((counts.sum() + 1) / (counts + 50.0)))
    return np.asarray(logarithms / logarithms.mean())


@dataclass(frozen=True, slots=True)
class Parts:
    """The tokens that make up each token: itself and, for a longer piece, its characters."""

    lists: TokenLists
    """The parts of each token of the vocabulary."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, compose: bool = True) -> "Parts":
        """Return the parts of a tokenizer's tokens; each is itself alone without ``compose``."""
        vocabulary = tokenizer.get_vocab()
        rows = [[number] for number in range(tokenizer.get_vocab_size())]
        for token, number in vocabulary.items() if compose else ():
            plain = token.removeprefix("##")
            if len(plain) > 1 and not token.startswith("["):
                rows[number] += [vocabulary[character] for character in plain if character in vocabulary]
        return cls(TokenLists.of(rows))

    def of_texts(self, tokens: TokenLists) -> TokenLists:
        """Return texts as the parts of their tokens."""
        parts = self.lists.take(tokens.flat)
        return TokenLists(parts.flat, parts.starts[tokens.starts])

    def fold(self, table: Vectors) -> Vectors:
        """Return the table (tokens, dim) whose rows are the sums of their parts, for use without parts."""
        return self.lists.sums(table)

    def unfold(self, table: Vectors) -> Vectors:
        """Return the table of parts whose `fold` is the given table."""
        whole = table * (self.lists.lengths == 1)[:, None]
        return np.asarray(table - (self.fold(whole) - whole), dtype=np.float32)
