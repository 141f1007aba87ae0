"""Analysers: how BM25 cuts texts into terms.

An analyser is a part of the collection contract, since documents and queries must be cut alike: a collection keeps the
one that it was made with. All of them read a text like this:

- Unicode NFKC, then lower case. Traditional and simplified forms stay what they are.
- A run of Han characters gives each of its characters and each pair of neighbours: 糖尿病 is 糖, 尿, 病, 糖尿, 尿病.
- A number and its unit are one term, with or without a space: ``5 mg``, ``5mg``; ``6.1 mmol/L``; ``38.5℃``; ``3%``.
- A hyphen between two numbers is a range: ``5-10mg`` is 5 and 10mg.
- All characters but letters and digits separate terms.

``zh-char-bigram``, for Chinese, keeps other words as they are. A name of letters, digits and hyphens is one term
without its hyphens, so that spellings meet: IL-6 and IL6, HbA1c, COVID-19, 5-HT, T790M.

The others leave out the function words of their language and stem the other words (snowballstemmer). Hyphens separate
words, unless a digit is among them: ``follow-up`` is two words, IL-6 is il6. Kana, Hangul, Thai, Lao, Burmese and Khmer
are read as Han is.

Characters without a width, such as U+200B and the soft hyphen, are left out first. Version 1 for Chinese separates
words at them. It is kept for the collections that have it, so that their documents are found as they were; the two
versions differ in no other text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from itertools import count, pairwise

from care_qdrant.encoders.terms.languages import CHINESE, FUNCTION_WORDS, HAN, UNSPACED, WORDS

PlacedTerms = Iterator[tuple[str, int]]

_PER = r"(?:/[a-z]+\d?)*"
_UNITS = rf"(?:%|‰|°[cf]?|(?:mmhg|kpa|kcal|kj|bpm|(?:[mμunp]?(?:g|l|mol|iu|u|m)|kg|dl|cm|km|min|h|d){_PER})"


@cache  # compiled when a text first needs it: the two cost a search twelve milliseconds
def _pattern(unspaced: str, *, marked: bool = False) -> re.Pattern[str]:
    letter = rf"[^\W_{unspaced}]"
    word = rf"{letter}[{_marks()}]*" if marked else letter
    return re.compile(
        rf"(?P<characters>[{unspaced}]+)"
        rf"|(?P<measure>\d+(?:[./]\d+)*\s?{_UNITS}(?!{letter})))"
        rf"|(?P<number>\d+(?:[./]\d+)*(?!{letter})(?!-[^\W\d_{unspaced}]))"
        rf"|(?P<name>(?:{word})+(?:-(?:{word})+)*)"
    )


def _marks() -> str:
    """Return the vowel signs and accents that belong to the word around them."""
    return "".join(
        character for character in map(chr, range(0x300, 0x1E00)) if unicodedata.category(character)[0] == "M"
    )


_HAN_CHARACTER = f"[{HAN}]"
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
"""Characters without a width: soft hyphens, joiners, marks of direction, variation selectors, byte order marks."""


@dataclass(frozen=True, slots=True)
class Analyser:
    """Cuts texts into terms."""

    name: str
    """Name and version, as a collection keeps them; any change to the terms needs another one."""
    language: str
    """Language as it is chosen (`care_qdrant.encoders.terms.languages`); weights of query terms belong to one."""
    placed_terms: Callable[[str], PlacedTerms]
    """Returns the terms of a text with their positions, from 0; a pair of characters has the position of its first."""

    def terms(self, text: str) -> Iterator[str]:
        """Return the terms of a text, each as often as it occurs."""
        return (term for term, _ in self.placed_terms(text))


def is_han(term: str) -> bool:
    """Return whether a term is a Han character or a pair of them."""
    return re.match(_HAN_CHARACTER, term) is not None


def without_invisible(text: str) -> str:
    """Return a text without its characters of no width."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def _separated(text: str) -> PlacedTerms:
    """Cut a text as for Chinese, and at characters without a width."""
    position = 0
    for match in _pattern(HAN).finditer(unicodedata.normalize("NFKC", text).lower()):
        term = match.group()
        match match.lastgroup:
            case "characters":
                yield from _characters(term, position)
                position += len(term)
                continue
            case "name":
                yield term.replace("-", ""), position
            case _:
                yield "".join(term.split()), position
        position += 1


def _chinese(text: str) -> PlacedTerms:
    return _separated(without_invisible(text))


def _stemmed(language: str, text: str) -> PlacedTerms:
    function_words, position = FUNCTION_WORDS.get(language, frozenset()), 0
    for match in _pattern(UNSPACED, marked=True).finditer(
        unicodedata.normalize("NFKC", without_invisible(text)).lower()
    ):
        term = match.group()
        match match.lastgroup:
            case "characters":
                yield from _characters(term, position)
                position += len(term)
            case "name" if not any(map(str.isdigit, term)):
                for word in term.split("-"):
                    if word not in function_words:
                        yield stem(language, word), position
                        position += 1
            case "name":
                yield term.replace("-", ""), position
                position += 1
            case _:
                yield "".join(term.split()), position
                position += 1


def _characters(run: str, position: int) -> PlacedTerms:
    yield from zip(run, count(position))
    yield from zip(map("".join, pairwise(run)), count(position))


@lru_cache(maxsize=1 << 17)
def stem(language: str, word: str) -> str:
    """Return the stem of a word in lower case; in a language without a stemmer, the word."""
    if language == WORDS:
        return word
    # Not by `snowballstemmer.stemmer`, which takes PyStemmer where that is installed: its version has its own stems. A
    # stemmer keeps the word that it works on, so that threads cannot share one.
    module = import_module(f"snowballstemmer.{language}_stemmer")
    stemmed: str = getattr(module, f"{language.title()}Stemmer")().stemWord(word)
    return stemmed


DEFAULT = Analyser("zh-char-bigram-2", CHINESE, _chinese)
"""Analyser of Chinese, which the weights of query terms of the included model belong to."""

_BY_LANGUAGE: Mapping[str, Analyser] = {
    CHINESE: DEFAULT,
    **{name: Analyser(f"{name}-1", name, partial(_stemmed, name)) for name in (WORDS, *FUNCTION_WORDS)},
}
_FORMER = (Analyser("zh-char-bigram-1", CHINESE, _separated),)
_BY_NAME: Mapping[str, Analyser] = {analyser.name: analyser for analyser in (*_FORMER, *_BY_LANGUAGE.values())}


def analyser_for(language: str) -> Analyser:
    """Return the analyser of a language of `LANGUAGES`, as new collections get it."""
    return _BY_LANGUAGE[language]


def find_analyser(name: str) -> Analyser | None:
    """Return the analyser of a name and version; None for one that this version does not have."""
    return _BY_NAME.get(name)
