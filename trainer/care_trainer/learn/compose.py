"""Tokens made of parts: a longer token is itself and its characters, so that a rare word still means something.

While training, each token stands for its own vector plus those of its characters. Afterwards the sums are written into
the table, so a query needs no parts.
"""

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from care_qdrant.types import Vectors
from care_trainer.learn.tokens import TokenLists

_UNSEEN = 1e-3
"""Length of the vector of a token without any trained part, in that of an average one: an unknown word alone then finds
something average instead of ending in a division by zero."""


class Composer:
    """Turns tokens into their parts, and a table of parts into a table of tokens."""

    def __init__(self, tokenizer: Tokenizer, *, parts: bool = True) -> None:
        """Read the vocabulary of a tokenizer."""
        vocabulary = tokenizer.get_vocab()
        lists = [[number] for number in range(tokenizer.get_vocab_size())]
        for token, number in vocabulary.items() if parts else ():
            if len(token) > 1 and not token.startswith("["):
                lists[number] += [vocabulary[character] for character in token if character in vocabulary]
        self._parts = TokenLists.of(lists)

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
