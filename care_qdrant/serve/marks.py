"""Which characters of a text a query hits, for the eye: the terms of BM25, found again with their places."""

import re
import unicodedata
from collections.abc import Sequence

from care_qdrant.encoders import bm25

MAX_TERMS = 64
MAX_CHARACTERS = 5_000
"""Of a text; what comes after is not marked."""
_SEPARATORS = r"[\s-]?"


def mark(query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the spans of each text that are terms of the query: first character and end, in order, apart.

    A single Han character counts only where the query has no two beside each other: it would mark half of the text.
    """
    terms = list(dict.fromkeys(bm25.terms(query)))
    longer = [term for term in terms if len(term) > 1] or terms
    if not longer:
        return [[] for _ in texts]
    # The longest first: an alternation takes the first that fits. Ahead only, because pairs of characters overlap.
    patterns = sorted(map(_pattern, longer[:MAX_TERMS]), key=len, reverse=True)
    found = re.compile(f"(?=({'|'.join(patterns)}))")
    return [_spans(found, text[:MAX_CHARACTERS]) for text in texts]


def _pattern(term: str) -> str:
    """Return the pattern of a term in any of its spellings: IL-6 and IL6, 5 mg and 5mg; never inside a word."""
    letters = _SEPARATORS.join(map(re.escape, term))
    return rf"(?<![a-z0-9]){letters}(?![a-z0-9])" if term.isascii() else letters


def _spans(found: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    characters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        normal = unicodedata.normalize("NFKC", character).lower()
        characters.append(normal)
        places += [place] * len(normal)
    spans: list[tuple[int, int]] = []
    for match in found.finditer("".join(characters)):
        start, end = places[match.start(1)], places[match.end(1) - 1] + 1
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans
