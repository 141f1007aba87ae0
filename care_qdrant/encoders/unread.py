"""The words of a text that a tokenizer does not read: unknown to it, or spelled out letter by letter.

A tokenizer that was trained on Chinese alone knows the letters of English and none of its words. Whatever a query
encoder makes of single letters is a vector of no meaning, near to everything, and its scores look like good ones.
"""

import re
import unicodedata

from tokenizers import Encoding

_RUN = re.compile(r"[^\W_]+")
_LEAST_LETTERS = 3
"""Letters of the shortest word that counts: shorter ones are single tokens, or letters, to every tokenizer."""
_LONGEST_ABBREVIATION = 6
_SPELLED_OUT = 0.75
"""Tokens per letter from which on a word counts as spelled out; a tokenizer that knows a language needs 0.2 to 0.5."""
_WORD_WEIGHT = 2
"""Characters of Chinese that carry as much as a word of letters."""
_UNKNOWN = ("[UNK]", "<unk>")


def unread_words(text: str, encoding: Encoding) -> list[str]:
    """Return the words of letters and the single characters that are not read, where they are most of a text.

    Abbreviations and codes do not count: each tokenizer spells out ``COPD`` and ``HbA1c``, in any language.

    Args:
        text: As it was tokenised, without a prompt.
        encoding: Its tokens; what was cut off does not count.

    Returns:
        The unread parts in order; empty where more than half of the text is read.
    """
    begun, unknown, last = [0] * len(text), [False] * len(text), 0  # at each character: tokens that begin there
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        if start < end:
            begun[start] += 1
            unknown[start:end] = [token in _UNKNOWN] * (end - start)
            last = max(last, end)
    unread, weight, unread_weight = [], 0, 0
    for start, end in _parts(text[:last]):
        part = text[start:end]
        is_word = len(part) > 1
        spelled_out = is_word and sum(begun[start:end]) >= _SPELLED_OUT * len(part)
        each = _WORD_WEIGHT if is_word else 1
        weight += each
        if spelled_out or any(unknown[start:end]):
            unread.append(part)
            unread_weight += each
    return unread if 2 * unread_weight > weight else []


def _parts(text: str) -> list[tuple[int, int]]:
    """Return the spans of words of letters, and of each single character of scripts that put no spaces between words.

    These are the wide ones: Han, kana, Hangul.
    """
    parts: list[tuple[int, int]] = []
    for run in _RUN.finditer(text):
        start = run.start()
        for place in range(run.start(), run.end() + 1):
            is_wide = place < run.end() and unicodedata.east_asian_width(text[place]) == "W"
            if is_wide or place == run.end():
                if _is_word(text[start:place]):
                    parts.append((start, place))
                start = place + 1
            if is_wide:
                parts.append((place, place + 1))
    return parts


def _is_word(run: str) -> bool:
    is_abbreviation = run[1:] != run[1:].lower() and len(run) <= _LONGEST_ABBREVIATION
    return len(run) >= _LEAST_LETTERS and run.isalpha() and not is_abbreviation
