"""Near-duplicate texts: Jaccard similarity of their character 4-grams."""

import unicodedata
from collections import Counter

_GRAM = 4


def grams(text: str) -> frozenset[str]:
    """Return the character 4-grams of the letters and digits of a text, of all characters where it has none.

    A shorter text is its own gram.
    """
    whole = unicodedata.normalize("NFKC", text).lower()
    kept = "".join(filter(str.isalnum, whole)) or whole
    return frozenset(kept[at : at + _GRAM] for at in range(max(1, len(kept) - _GRAM + 1)))


def overlap(first: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets, from 0 to 1."""
    return len(first & other) / max(1, len(first | other))


class NearTexts:
    """An index of texts by their grams, which finds the added texts that nearly equal another."""

    def __init__(self, threshold: float) -> None:
        self._threshold, self._sizes, self._having = threshold, dict[str, int](), dict[str, list[str]]()

    def find(self, text: str) -> list[str]:
        """Return the names of all texts at or above the threshold, most similar first, then in the order of adding."""
        own = grams(text)
        shared = Counter(name for gram in own for name in self._having.get(gram, ()))
        near = {name: count / (len(own) + self._sizes[name] - count) for name, count in shared.items()}
        named = [name for name in self._sizes if near.get(name, -1.0) >= self._threshold] if near else []
        return sorted(named, key=lambda name: -near[name])

    def add(self, name: str, text: str) -> None:
        """Add a text under a name."""
        self._sizes[name] = len(own := grams(text))
        for gram in own:
            self._having.setdefault(gram, []).append(name)
