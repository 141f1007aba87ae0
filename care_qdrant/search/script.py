"""Detects questions in traditional Chinese characters on texts in simplified ones, and the reverse.

The two forms are different characters, so neither vectors nor BM25 see that they mean the same, unless a model was
trained on both. The character sets of the two standards tell them apart, without a table of our own.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from care_qdrant.types import Hit, embedded_text

Script = Literal["traditional", "simplified"]


def script_of(texts: Iterable[str]) -> Script | None:
    """Return the script whose exclusive characters are more frequent in the texts; None if neither is.

    Example::

        script_of(["糖尿病人能吃西瓜嗎"])   # 'traditional', since 嗎 is 吗 in simplified texts
    """
    scripts = [_script(character) for text in texts for character in text]
    traditional, simplified = scripts.count("traditional"), scripts.count("simplified")
    if traditional == simplified:
        return None
    return "traditional" if traditional > simplified else "simplified"


def script_note(query: str, hits: Iterable[Hit]) -> str | None:
    """Return a note if a question is in one script and its hits are in the other; otherwise None."""
    asked = script_of([query])
    if asked is None:
        return None
    written = script_of(embedded_text(hit.title, hit.text) for hit in hits)
    if written is None or asked == written:
        return None
    profile = "t2s" if asked == "traditional" else "s2t"
    return (
        f"the question is in {asked} Chinese characters and the texts are in {written} ones, which match neither by "
        f"vectors nor by words: convert the question, for example with OpenCC ({profile})"
    )


@lru_cache(maxsize=1 << 14)
def _script(character: str) -> Script | None:
    """Return the only standard that has a character: Big5 of traditional ones, GB 2312 of simplified ones."""
    if not "\u4e00" <= character <= "\u9fff":
        return None
    is_in_gb, is_in_big5 = (_has(encoding, character) for encoding in ("gb2312", "big5"))
    if is_in_gb == is_in_big5:
        return None
    return "simplified" if is_in_gb else "traditional"


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
