"""Near-duplicate texts: Jaccard similarity of character 4-grams, found by MinHash (Broder, 1997) and then computed."""

import unicodedata
from collections.abc import Iterable

from datasketch import MinHash, MinHashLSH

_GRAM = 4
_HASHES = 128


def grams(text: str) -> frozenset[str]:
    """Return the character 4-grams of the letters and digits of a text; a shorter text is its own gram."""
    kept = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).lower()))
    return frozenset(kept[at : at + _GRAM] for at in range(max(1, len(kept) - _GRAM + 1)))


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets, from 0 to 1."""
    return len(one & other) / max(1, len(one | other))


class NearTexts:
    """Texts that were added, found again by texts that nearly equal them."""

    def __init__(self, threshold: float) -> None:
        self._threshold, self._sets = threshold, dict[str, frozenset[str]]()
        # The hashes only propose; looking a little lower than the threshold misses fewer.
        self._lsh = MinHashLSH(threshold=min(0.95, max(0.1, threshold - 0.1)), num_perm=_HASHES)
        self._equal: dict[frozenset[str], str] = {}

    def find(self, text: str) -> str | None:
        """Return the name of the most similar text above the threshold; the first one added wins a tie."""
        own = grams(text)
        if own in self._equal:
            return self._equal[own]
        names: Iterable[str] = self._lsh.query(_minhash(own)) if self._sets else []
        near = [(overlap(own, self._sets[name]), name) for name in names]
        order = {name: place for place, name in enumerate(self._sets)}
        near = sorted(
            (pair for pair in near if pair[0] >= self._threshold), key=lambda each: (-each[0], order[each[1]])
        )
        return near[0][1] if near else None

    def add(self, name: str, text: str) -> None:
        """Add a text under a name."""
        own = grams(text)
        if name not in self._sets:
            self._sets[name] = own
            self._equal.setdefault(own, name)
            self._lsh.insert(name, _minhash(own))


def _minhash(parts: frozenset[str]) -> MinHash:
    made = MinHash(num_perm=_HASHES)
    made.update_batch([part.encode() for part in sorted(parts)])
    return made
