"""The words of a text that a tokenizer does not read: unknown to it, or cut into ever smaller pieces.

A tokenizer that was trained on Chinese alone knows the letters of English and none of its words. A query encoder
makes a meaningless vector of single letters, near to everything, and its scores look like good ones.
"""

import unicodedata
from collections.abc import Sequence
from itertools import groupby

from tokenizers import Encoding, Tokenizer

_LEAST_LETTERS = 3
"""Letters of the shortest word that counts: shorter ones are single tokens, or letters, to every tokenizer."""
_LONGEST_ABBREVIATION = 6
_SPELLED_OUT = 0.6
"""Cuts per letter from which on words count as spelled out, for any tokenizer."""
_FOREIGN = 0.28
"""Cuts per letter of the words of a text that a vocabulary of few languages was not made for: English has 0.18 in the
included model's, of Chinese and English, and ten other languages in Latin letters 0.29 to 0.65."""
_FEW_LANGUAGES = 60_000
"""Tokens of the largest vocabulary of few languages; vocabularies of many have 100,000 or more."""
_LEAST_WORDS = 5
"""Words of a text that tell its language; fewer may be names, or terms that are rare in any."""
_WORD_WEIGHT = 2
"""Characters of Chinese that carry as much as a word of letters."""
_SHOWN = 5
"""Words that a message names."""
_UNKNOWN = ("[UNK]", "<unk>")


def some_of(unread: Sequence[str]) -> str:
    """Return the first unread words of a text for a message, each once, with the number of the others."""
    words = list(dict.fromkeys(unread))
    others = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return f"{', '.join(words[:_SHOWN])}{others}"


class UnreadWords:
    """The words that one tokenizer does not read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # By number: some tokenizers give the text itself as the token of what is unknown.
        self._unknown = {tokenizer.token_to_id(name) for name in _UNKNOWN} - {None}
        self._knows_few_languages = tokenizer.get_vocab_size() <= _FEW_LANGUAGES

    def __call__(self, text: str, encoding: Encoding) -> list[str]:
        """Return the words of letters and the single characters that are not read, where they are most of a text.

        Abbreviations and codes do not count: each tokenizer spells out ``COPD`` and ``HbA1c``, in any language.

        Args:
            text: As it was tokenised, without a prompt.
            encoding: Its tokens; what was cut off does not count.

        Returns:
            The unread parts in order; empty where more than half of the text is read.
        """
        cut, unknown, last = [False] * len(text), [False] * len(text), 0  # whether a token begins there; is unknown
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if start < end:
                cut[start] = True
                unknown[start:end] = [token in self._unknown] * (end - start)
                last = max(last, end)
        parts = _parts(text[:last])
        words = [(start, end) for start, end in parts if end - start > 1]
        is_foreign = (
            self._knows_few_languages
            and len(words) >= _LEAST_WORDS
            and _cuts(cut, words) >= _FOREIGN * sum(end - start for start, end in words)
        )
        unread, weight, unread_weight = [], 0, 0
        for start, end in parts:
            is_word = end - start > 1
            spelled_out = is_word and (is_foreign or _cuts(cut, [(start, end)]) >= _SPELLED_OUT * (end - start))
            part_weight = _WORD_WEIGHT if is_word else 1
            weight += part_weight
            if spelled_out or any(unknown[start:end]):
                unread.append(text[start:end])
                unread_weight += part_weight
        return unread if 2 * unread_weight > weight else []


def _cuts(cut: list[bool], words: list[tuple[int, int]]) -> int:
    """Return the number of tokens that begin inside words."""
    return sum(sum(cut[start + 1 : end]) for start, end in words)


def _parts(text: str) -> list[tuple[int, int]]:
    """Return the spans of words of letters, and of each single character of scripts that put no spaces between words.

    These are the wide ones: Han, kana, Hangul. Vowel signs and accents of their own belong to the word around them.
    """
    parts: list[tuple[int, int]] = []
    start = 0
    for kind, characters in groupby(text, _kind):
        end = start + sum(1 for _ in characters)
        if kind == "wide":
            parts += [(place, place + 1) for place in range(start, end)]
        elif kind == "word" and _is_word(text[start:end]):
            parts.append((start, end))
        start = end
    return parts


def _kind(character: str) -> str:
    category = unicodedata.category(character)[0]
    if category not in "LMN":
        return "other"
    return "wide" if unicodedata.east_asian_width(character) == "W" else "word"


def _is_word(run: str) -> bool:
    is_abbreviation = run[1:] != run[1:].lower() and len(run) <= _LONGEST_ABBREVIATION
    has_letters_alone = all(unicodedata.category(character)[0] in "LM" for character in run)
    return len(run) >= _LEAST_LETTERS and has_letters_alone and not is_abbreviation
