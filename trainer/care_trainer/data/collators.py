"""Collators: rows to tokenised batches, with crops of documents or a teacher's stored vectors."""

import random
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

SHORTEST_CROP, LONGEST_CROP = 6, 36
"""Length of a span in characters."""
SHORTEST_REST = 12
"""Characters that a crop must leave; a shorter document is not cropped."""


class PairCollator(SentenceTransformerDataCollator):
    """Tokenises pairs, a fraction of them replaced by two parts of their document, as in inverse cloze.

    Args:
        crop: Fraction of the pairs.
        options: Options of sentence-transformers' collator.
    """

    def __init__(self, crop: float, **options: Any) -> None:
        super().__init__(**options)
        self.crop = crop

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the tokenised batch; the crops depend on its rows alone, so that a resumed run draws them again."""
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
    """Cut a span out of a text.

    Half of the time the span stays in the rest, so that shared words count, too.

    Args:
        text: The document.
        draw: Source of randomness.

    Returns:
        The span and the rest, or None when the text is too short.
    """
    if len(text) < SHORTEST_CROP + SHORTEST_REST:
        return None
    length = draw.randint(SHORTEST_CROP, min(LONGEST_CROP, len(text) - SHORTEST_REST))
    start = draw.randint(0, len(text) - length)
    span = text[start : start + length]
    return span, text if draw.random() < 0.5 else text[:start] + text[start + length :]


class TeacherCollator(SentenceTransformerDataCollator):
    """Replaces the ``label`` of each row, its number, by the teacher's vector.

    As lists in the data set the vectors would cost 0.3 s for a batch of 2,560 × 768; from the memmap it is 1 ms.

    Args:
        vectors: Vectors of the rows, one array (rows, dim) for each column of labels.
        options: Options of sentence-transformers' collator.
    """

    def __init__(self, *vectors: npt.NDArray[np.float16], **options: Any) -> None:
        super().__init__(**options)
        self.vectors = vectors

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the tokenised batch with ``label`` (rows, dim), or (rows, columns, dim) of several arrays, float16."""
        batch = super().__call__(features)
        found = [torch.from_numpy(vectors[batch["label"].numpy()]) for vectors in self.vectors]
        batch["label"] = found[0] if len(found) == 1 else torch.stack(found, dim=1)
        return batch
