"""Documents that begin alike: a letterhead, a menu, a greeting, the front matter of a page.

The built-in model and BM25 weigh the words of a document from its beginning, so what many documents share there takes
the place of what each of them is about.
"""

from itertools import takewhile

KEY_CHARACTERS = 8
"""Length from which two beginnings count as the same."""
FEWEST_DOCUMENTS = 20
"""Fewest documents with the same beginning that are reported."""
LEAST_SHARE = 0.2
"""A smaller share of the documents is not reported."""
MOST_CHARACTERS = 40
"""Length of a beginning that is compared and shown."""


class Beginnings:
    """Counts of the words that the first documents of a corpus begin with."""

    def __init__(self, most_documents: int = 10_000) -> None:
        """Count at most this number of documents."""
        self._left, self._count = most_documents, 0
        self._groups: dict[str, tuple[int, str]] = {}

    def add(self, text: str) -> None:
        """Count a document by what its encoder reads."""
        if not self._left:
            return
        self._left, self._count = self._left - 1, self._count + 1
        beginning = text[:MOST_CHARACTERS]
        key = beginning[:KEY_CHARACTERS]
        count, shared = self._groups.get(key, (0, beginning))
        self._groups[key] = (count + 1, _common(shared, beginning))

    def most_common(self) -> tuple[str, float] | None:
        """Return what most of the documents share, and their share in all; None where it is not many."""
        count, shared = max(self._groups.values(), default=(0, ""))
        share = count / max(1, self._count)
        return (shared, share) if count >= FEWEST_DOCUMENTS and share >= LEAST_SHARE else None


def _common(beginning: str, other: str) -> str:
    if other.startswith(beginning):
        return beginning
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(beginning, other, strict=False))
    return "".join(character for character, _ in pairs)
