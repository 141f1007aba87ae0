"""Character classes of scripts, for regular expressions."""

import unicodedata

HAN = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
UNSPACED = HAN + "\u0e01-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17dd\u3041-\u30ff\u31f0-\u31ff\uac00-\ud7a3"
"""Scripts whose words are not told apart by spaces, or carry their particles: Han, kana, Hangul, Thai, Lao, Burmese,
Khmer."""
MARKS = "".join(character for character in map(chr, range(0x300, 0x1E00)) if unicodedata.category(character)[0] == "M")
"""Vowel signs and accents that belong to the word around them."""
INVISIBLE = (
    "\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff"
)
"""Characters without a width: soft hyphens, joiners, marks of direction, variation selectors, byte order marks."""
