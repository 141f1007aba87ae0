"""Refuses encoders that cannot run here, unusable texts, and vectors that an encoder should never return.

Qdrant's engine would take such a vector and never find the point again.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from care_qdrant.encoders.side import Geometry
from care_qdrant.errors import EncodingError, InputError, UnusableText, require_packages
from care_qdrant.types import Vectors, half_character, is_blank

LEAST_LENGTH = 1e-6
"""Shortest length of a usable vector; a shorter one counts as zero."""
_LINE_BREAKING = re.compile("[\u00ad\u200b\u2060\ufeff]")
"""Soft hyphen, zero-width space, word joiner and byte order mark. Joiners and variation selectors, which change a glyph
in Persian or an emoji, are left to the tokenizer."""


def require_usable(vectors: Vectors, shape: tuple[int, int], name_of: Callable[[int], str]) -> None:
    """Check the vectors of one batch."""
    if vectors.shape != shape:
        raise EncodingError(f"the document encoder gave vectors of shape {vectors.shape}; expected {shape}")
    norms = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.isfinite(norms) & (norms >= LEAST_LENGTH)))
    if bad.size:
        raise EncodingError(
            f"the document encoder gave a vector of length {norms[bad[0]]} for {name_of(int(bad[0]))}; "
            "check the model with: care model verify"
        )


def require_texts(texts: Sequence[str]) -> None:
    """Refuse anything but a list of texts, and half characters, which tokenizers, JSON and Qdrant refuse.

    Raises:
        InputError: It is one text, whose characters would be taken for texts.
        UnusableText: Some are not texts, or hold half a character.
    """
    if isinstance(texts, str):
        raise InputError(f"one text ({texts[:40]!r}) is given where a list of texts is expected; write [text]")
    problems = {place: problem for place, text in enumerate(texts) if (problem := _problem(text))}
    if problems:
        raise UnusableText(problems)


def _problem(text: object) -> str:
    if not isinstance(text, str):
        return f"is {text!r:.40} ({type(text).__name__}), which is not text"
    half = half_character(text)
    return f"({text[:40]!r}) holds an unpaired surrogate ({half}), which is not a character" if half else ""


def as_encoded(texts: Sequence[str]) -> list[str]:
    """Return texts as encoders read them: without the characters that only say where a line may be broken.

    Web pages and PDF files leave them inside words, where they look like nothing and change every token.

    Raises:
        InputError: It is one text.
        UnusableText: Some are not texts, or hold half a character.
    """
    require_texts(texts)
    return [text if text.isascii() else _LINE_BREAKING.sub("", text) for text in texts]


def encodable(texts: Sequence[str]) -> list[str]:
    """Return `as_encoded`, and refuse blank texts: a model would return the vector of its prompt.

    Raises:
        InputError: It is one text.
        UnusableText: Some are blank, are not texts, or hold half a character.
    """
    read = as_encoded(texts)
    require_tokens(texts, [place for place, text in enumerate(texts) if is_blank(text)])
    return read


def require_tokens(texts: Sequence[str], places: Sequence[int]) -> None:
    """Refuse texts without a token that the model weighs, by their places."""
    if places:
        raise UnusableText(
            {place: f"({texts[place][:40]!r}) has no tokens that the model weighs, so no vector" for place in places}
        )


def encode_usable(encode: Callable[[Sequence[str]], Vectors], texts: Sequence[str]) -> list[Vectors | None]:
    """Return the vector of each text; None for a text that no vector can be made of."""
    try:
        return [*encode(texts)] if texts else []
    except UnusableText as error:
        rows = iter(encode_usable(encode, [text for place, text in enumerate(texts) if place not in error.problems]))
        return [None if place in error.problems else next(rows) for place in range(len(texts))]


def require_lengths(
    vectors: Vectors, texts: Sequence[str], geometry: Geometry = "unit", *, tolerance: float = 1e-3
) -> None:
    """Check that an encoder gave unit vectors, or parts of unit vectors where they are cut."""
    norms = np.linalg.norm(vectors, axis=1)
    is_usable = np.abs(norms - 1) < tolerance if geometry == "unit" else (norms > tolerance) & (norms < 1 + tolerance)
    bad = np.flatnonzero(~is_usable)
    if bad.size:
        require_tokens(texts, [int(row) for row in bad if norms[row] < tolerance])
        row, expected = int(bad[0]), "1" if geometry == "unit" else "at most 1"
        raise EncodingError(
            f"the encoder gave a vector of length {norms[row]} for text {row} ({texts[row][:40]!r}); expected "
            f"{expected}: check the model with: care model verify"
        )


def require_torch() -> None:
    """Refuse an installation that cannot run a torch encoder; imports nothing."""
    require_packages("ingest", "the document encoder", "torch", "sentence_transformers")
