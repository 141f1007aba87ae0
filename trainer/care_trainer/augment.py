"""Pairs out of a single document: a short span of it against what is left, as in inverse cloze."""

import random
import zlib
from typing import Any

from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

SHORTEST_CROP, LONGEST_CROP = 6, 36
"""Characters of the span."""
SHORTEST_REST = 12
"""Characters; a document that leaves less is not cropped."""


class PairCollator(SentenceTransformerDataCollator):
    """Tokenises pairs, a share of them replaced by crops.

    Args:
        crop: Share of the pairs.
        options: Of sentence-transformers' collator.
    """

    def __init__(self, crop: float, **options: Any) -> None:
        super().__init__(**options)
        self.crop = crop

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Give the tokenised batch; the crops depend on its rows alone, so that a resumed run draws them again."""
        if self.crop:
            draw = random.Random(zlib.crc32("".join(row["query"] for row in features).encode()))
            features = [self._cropped(row, draw) if draw.random() < self.crop else row for row in features]
        batch: dict[str, Any] = super().__call__(features)
        return batch

    @staticmethod
    def _cropped(row: dict[str, Any], draw: random.Random) -> dict[str, Any]:
        parts = crop(row["positive"], draw)
        return row if parts is None else {**row, "query": parts[0], "positive": parts[1]}


def crop(text: str, draw: random.Random) -> tuple[str, str] | None:
    """Cut a span out of a text, and give it with the rest; None where the text is too short.

    Half of the time the span stays in the rest, so that shared words count, too.
    """
    if len(text) < SHORTEST_CROP + SHORTEST_REST:
        return None
    length = draw.randint(SHORTEST_CROP, min(LONGEST_CROP, len(text) - SHORTEST_REST))
    start = draw.randint(0, len(text) - length)
    span = text[start : start + length]
    return span, text if draw.random() < 0.5 else text[:start] + text[start + length :]
