"""Exact nearest neighbours by cosine, computed here, so that the server's memory and caches stay as they were."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from care_qdrant.types import Vectors

BLOCK = 65_536


def nearest(rows: Vectors, queries: Vectors, count: int, keep: npt.NDArray[np.bool_] | None = None) -> list[set[int]]:
    """Return the numbers of the nearest rows of each query."""
    scores = np.empty((len(queries), 0), dtype=np.float32)
    numbers = np.empty((len(queries), 0), dtype=np.int64)
    for start in range(0, len(rows), BLOCK):
        block = queries @ np.asarray(rows[start : start + BLOCK]).T
        if keep is not None:
            block = np.where(keep[:, start : start + BLOCK], block, -np.inf)
        own = np.broadcast_to(np.arange(start, start + block.shape[1]), block.shape)
        scores, numbers = np.hstack([scores, block]), np.hstack([numbers, own])
        best = np.argpartition(-scores, min(count, scores.shape[1]) - 1, axis=1)[:, :count]
        scores, numbers = np.take_along_axis(scores, best, 1), np.take_along_axis(numbers, best, 1)
    found = zip(numbers.tolist(), scores.tolist(), strict=True)
    return [{number for number, score in zip(*each, strict=True) if score > -np.inf} for each in found]


def recall(exact: Sequence[set[int]], found: Sequence[set[int]]) -> float:
    """Return the mean fraction of the exact neighbours that were found, over queries that have any."""
    shares = [len(here & there) / len(here) for here, there in zip(exact, found, strict=True) if here]
    return round(sum(shares) / len(shares), 4)
