"""Held-out documents as a test without judgements: a sentence or the title of a document has to find its document."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from care_qdrant.types import Vectors

_SENTENCE_END = re.compile(r"(?<=[。！？!?；;\n])|(?<=\.)\s")
_MIN_CHARACTERS, _MAX_CHARACTERS = 8, 80
_BLOCK = 256
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How well questions made of held-out documents find the documents that they were made of."""

    queries: int
    candidates: int
    recall_at_1: float
    recall_at_10: float
    mrr: float
    """Mean reciprocal rank, from 0 to 1."""
    percentile: float
    """Mean fraction of the candidates that rank below the document; 0.5 is chance."""


def question_of(text: str, title: str, generator: np.random.Generator) -> str:
    """Return the title of a document, or one of its sentences, or a part of it where it has no short sentence."""
    if title.strip():
        return title
    sentences = [part.strip() for part in _SENTENCE_END.split(text)]
    short = [part for part in sentences if _MIN_CHARACTERS <= len(part) <= _MAX_CHARACTERS and part != text.strip()]
    if short:
        return short[int(generator.integers(len(short)))]
    size = max(_MIN_CHARACTERS, min(_MAX_CHARACTERS, len(text) // 3))
    start = int(generator.integers(max(1, len(text) - size)))
    return text[start : start + size]


def ranks(
    queries: Vectors, candidates: npt.NDArray[np.floating], answers: Sequence[int] | npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """Return the rank of each answer among the candidates by inner product, from 1; equal vectors share one."""
    found = np.empty(len(queries), dtype=np.int64)
    rows = np.asarray(answers)
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = queries[block] @ candidates.T
        own = scores[np.arange(len(scores)), rows[block]]
        found[block] = (scores > own[:, None] + _TIE).sum(axis=1) + 1
    return found


def measure(found: npt.NDArray[np.int64], candidates: int) -> HeldOut:
    """Return the figures of some ranks."""
    return HeldOut(
        queries=len(found),
        candidates=candidates,
        recall_at_1=round(float((found == 1).mean()), 4),
        recall_at_10=round(float((found <= 10).mean()), 4),
        mrr=round(float((1 / found).mean()), 4),
        percentile=round(float(1 - (found - 1).mean() / max(1, candidates - 1)), 4),
    )
