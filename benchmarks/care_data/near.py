"""Near-duplicate texts: Jaccard similarity of their character 4-grams."""

import unicodedata
from collections import Counter

_GRAM = 4


def grams(text: str) -> frozenset[str]:
    """Return the character 4-grams of the letters and digits of a text; a shorter text is its own gram."""
    kept = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).lower()))
    return frozenset(kept[at : at + _GRAM] for at in range(max(1, len(kept) - _GRAM + 1)))


def overlap(first: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets, from 0 to 1."""
    return len(first & other) / max(1, len(first | other))


class NearTexts:
    """An index of texts by their grams, which finds the added text that nearly equals another."""

    def __init__(self, threshold: float) -> None:
        self._threshold, self._sizes, self._having = threshold, dict[str, int](), dict[str, list[str]]()

    def find(self, text: str) -> str | None:
        """Return the name of the most similar text above the threshold; the first one added wins a tie."""
        own = grams(text)
        shared = Counter(name for gram in own for name in self._having.get(gram, ()))
        near = {name: count / (len(own) + self._sizes[name] - count) for name, count in shared.items()}
        best = max(near.values(), default=-1.0)
        return next(name for name in self._sizes if near.get(name) == best) if best >= self._threshold else None

    def add(self, name: str, text: str) -> None:
        """Add a text under a name."""
        self._sizes[name] = len(own := grams(text))
        for gram in own:
            self._having.setdefault(gram, []).append(name)
