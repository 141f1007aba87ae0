"""Whether a model reads the language of some texts: a model of another one gives them vectors that mean nothing."""

import logging
from collections.abc import Iterable, Sequence

from care_qdrant.encoders import TextReader
from care_qdrant.errors import InputError

logger = logging.getLogger(__name__)

SAMPLED_TEXTS = 32
"""Number of texts of a collection or a corpus that are looked at."""
MOST_UNREAD = 0.5
"""Fraction of unread texts from which on a model is refused."""
NOTICEABLE_UNREAD = 0.1
"""Fraction of unread texts from which on a warning is logged."""
_SHOWN_CHARACTERS = 40


def require_language(model: str, reader: object, texts: Iterable[str]) -> None:
    """Refuse a model whose tokenizer does not read most of the texts; log a warning where it does not read many.

    Args:
        model: Name of the model.
        reader: Its tokenizer or encoder; one that cannot tell which words it reads passes.
        texts: Some of the texts that would be encoded.

    Raises:
        InputError: It does not read half of the texts or more.
    """
    if not isinstance(reader, TextReader):
        return
    texts = [text for half in texts if (text := half.encode(errors="ignore").decode()).strip()]  # no half characters
    unread = [text for text in texts if reader.unread(text)]
    if len(unread) < NOTICEABLE_UNREAD * len(texts) or not unread:
        return
    said = (
        f"model {model!r} does not read {len(unread) / len(texts):.0%} of {len(texts)} sampled texts, such as "
        f"{_shown(unread)!r}: its vectors of them mean nothing"
    )
    if len(unread) < MOST_UNREAD * len(texts):
        logger.warning("%s. BM25 alone finds those", said)
        return
    raise InputError(
        f"{said}. Give a model of their language with --model; use BM25 alone (care attach COLLECTION --bm25, and care "
        "search --mode sparse); or learn a query encoder from vectors that are there already (care learn). "
        "--any-language encodes them all the same"
    )


def _shown(unread: Sequence[str]) -> str:
    return " ".join(unread[0].split())[:_SHOWN_CHARACTERS]
