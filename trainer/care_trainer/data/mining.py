"""Hard negatives mined from a Qdrant collection: hits close to a query that are not its answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from care_qdrant import Hit
from care_qdrant.errors import InputError
from care_qdrant.types import Vectors, embedded_text
from care_trainer.data.read import Pair

if TYPE_CHECKING:
    from care_qdrant import CareModel

BATCH_PAIRS = 256
"""Pairs searched at once."""

Search = Callable[[Sequence[str], int], list[list[Hit]]]
"""Function from queries and a number of hits to the hits of each query, best first."""


@dataclass(frozen=True)
class MiningRule:
    """The rule by which hits become negatives.

    The best ranks are left out: most unlabelled relevant documents are there.
    """

    negatives: int = 5
    """Highest number of negatives of each query."""
    first_rank: int = 10
    """First rank that counts, from 1."""
    last_rank: int = 60
    """Last rank that counts."""
    relative_margin: float | None = 0.05
    """Margin below the positive's score: a negative scores at most (1 - margin) times as much. None is off."""

    def __post_init__(self) -> None:
        if not 1 <= self.first_rank <= self.last_rank:
            raise InputError(f"ranks {self.first_rank} to {self.last_rank}: expected 1 <= first <= last")


def mine_pairs(
    pairs: Sequence[Pair],
    search: Search,
    rule: MiningRule,
    positive_scores: Callable[[Sequence[Pair]], Vectors] | None,
) -> Iterator[Pair]:
    """Yield every pair with its mined negatives, in order; a pair with a score gets none, and none is dropped."""
    answers: dict[str, set[str]] = {}
    for pair in pairs:
        answers.setdefault(pair.query, set()).add(pair.positive)
    for start in range(0, len(pairs), BATCH_PAIRS):
        batch = pairs[start : start + BATCH_PAIRS]
        hits = search([pair.query for pair in batch], rule.last_rank)
        scores = positive_scores(batch) if positive_scores else np.full(len(batch), np.inf, dtype=np.float32)
        for pair, own_hits, score in zip(batch, hits, scores.tolist(), strict=True):
            mined = () if pair.score is not None else _negatives(pair, own_hits, score, rule, answers[pair.query])
            yield replace(pair, negatives=tuple(mined))


def similarity(model: "CareModel") -> Callable[[Sequence[Pair]], Vectors]:
    """Return a function that scores each pair's own positive as a dense search would."""

    def scores(pairs: Sequence[Pair]) -> Vectors:
        queries = model.encode_query([pair.query for pair in pairs])
        documents = model.encode_document([pair.positive for pair in pairs])
        cosine: Vectors = (queries * documents).sum(axis=1)
        return cosine

    return scores


def _negatives(pair: Pair, hits: Sequence[Hit], score: float, rule: MiningRule, answers: set[str]) -> list[str]:
    limit = score * (1 - rule.relative_margin) if rule.relative_margin is not None else np.inf
    texts = (
        embedded_text(hit.title, hit.text) for hit in hits[rule.first_rank - 1 : rule.last_rank] if hit.score <= limit
    )
    distinct = dict.fromkeys(text for text in texts if text not in answers and text != pair.query)
    return list(distinct)[: rule.negatives]
