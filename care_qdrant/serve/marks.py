"""Terms of a query in the texts that were found, for a page that marks them."""

import re
import unicodedata
from collections.abc import Sequence

from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.encoders.terms.languages import HAN

MAX_TERMS = 64
"""Terms of a query that are marked."""
MAX_CHARACTERS = 5_000
"""Characters of a text in which terms are marked."""
MAX_HITS = 100
"""Hits of a search in which terms are marked."""
_SEPARATORS = r"[\s-]?"
_WORD = re.compile(r"[^\W_]+")
_LETTER = rf"[^\W_{HAN}]"


def mark(query: str, texts: Sequence[str], analyser: Analyser = DEFAULT) -> list[list[tuple[int, int]]]:
    """Return the spans of each text that are terms of the query: first character and end, in order, apart.

    Single Han characters count only if the query has no longer term: they would mark half of the text.
    """
    terms = list(dict.fromkeys(analyser.terms(query)))
    if analyser.language != DEFAULT.language:  # words that have these stems
        words = dict.fromkeys(word for text in texts for word in _WORD.findall(text[:MAX_CHARACTERS].lower()))
        terms = [
            word for word in words if word not in terms and not set(terms).isdisjoint(analyser.terms(word))
        ] + terms
    longer = [term for term in terms if len(term) > 1] or terms
    if not longer:
        return [[] for _ in texts]
    # The longest first: an alternation takes the first that fits. Ahead only, because pairs of characters overlap.
    patterns = sorted(map(_pattern, longer[:MAX_TERMS]), key=len, reverse=True)
    term = re.compile(f"(?=({'|'.join(patterns)}))")
    return [_spans(term, text[:MAX_CHARACTERS]) for text in texts]


def _pattern(term: str) -> str:
    """Return the pattern of a term in any of its spellings: IL-6 and IL6, 5 mg and 5mg; never inside a word."""
    letters = _SEPARATORS.join(map(re.escape, term))
    if len(term) < 3 and not term.isascii():  # one or two characters of a script without spaces
        return letters
    inside = "[a-z0-9]" if term.isascii() else _LETTER
    return rf"(?<!{inside}){letters}(?!{inside})"


def _spans(term: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    normal, places = _normalized(text)
    spans: list[tuple[int, int]] = []
    for match in term.finditer(normal):
        start, end = places[match.start(1)], places[match.end(1) - 1] + 1
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _normalized(text: str) -> tuple[str, Sequence[int]]:
    """Return a text in the form that terms have, and the place in the text of each of its characters."""
    lower = text.lower()
    if len(lower) == len(text) and unicodedata.is_normalized("NFKC", text):  # nearly all texts: twenty times as fast
        return lower, range(len(text))
    characters = [unicodedata.normalize("NFKC", character).lower() for character in text]
    places = [place for place, normal in enumerate(characters) for _ in normal]
    return "".join(characters), places
