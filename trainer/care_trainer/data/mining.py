"""Hard negatives mined from a Qdrant collection: hits close to a query that are not its answer."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from care_qdrant import Hit
from care_qdrant.errors import InputError
from care_qdrant.types import Vectors, embedded_text
from care_trainer.data.read import Pair, plain_text

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
    """Margin below the positive's score, as a share of its size: a negative scores at most (1 - margin) times a score
    above 0, and (1 + margin) times one below. None is off."""

    def __post_init__(self) -> None:
        if not 1 <= self.first_rank <= self.last_rank:
            raise InputError(f"ranks {self.first_rank} to {self.last_rank}: expected 1 <= first <= last")


def mine_pairs(
    pairs: Sequence[Pair],
    search: Search,
    rule: MiningRule,
    positive_scores: Callable[[Sequence[Pair]], Vectors] | None,
) -> Iterator[Pair]:
    """Yield every pair in order, with mined negatives after its own; a pair with a score gets none."""
    answers: dict[str, set[str]] = {}
    for pair in pairs:
        answers.setdefault(pair.query, set()).add(plain_text(pair.positive))
    for start in range(0, len(pairs), BATCH_PAIRS):
        batch = pairs[start : start + BATCH_PAIRS]
        hits = search([pair.query for pair in batch], rule.last_rank)
        scores = positive_scores(batch).tolist() if positive_scores else [None] * len(batch)
        for pair, own_hits, score in zip(batch, hits, scores, strict=True):
            mined = () if pair.score is not None else _negatives(pair, own_hits, score, rule, answers[pair.query])
            yield replace(pair, negatives=tuple(dict.fromkeys([*pair.negatives, *mined])))


def similarity(model: "CareModel") -> Callable[[Sequence[Pair]], Vectors]:
    """Return a function that scores each pair's own positive as a dense search would."""

    def scores(pairs: Sequence[Pair]) -> Vectors:
        queries = model.encode_query([pair.query for pair in pairs])
        documents = model.encode_document([pair.positive for pair in pairs])
        cosine: Vectors = (queries * documents).sum(axis=1)
        return cosine

    return scores


def _negatives(pair: Pair, hits: Sequence[Hit], score: float | None, rule: MiningRule, answers: set[str]) -> list[str]:
    margin = rule.relative_margin
    limit = math.inf if score is None or margin is None else score - abs(score) * margin
    texts = (
        embedded_text(hit.title, hit.text)
        for hit in hits[rule.first_rank - 1 : rule.last_rank]
        if hit.score <= limit and not _answers(plain_text(hit.text), answers)
    )
    distinct = dict.fromkeys(text for text in texts if plain_text(text) != plain_text(pair.query))
    return list(distinct)[: rule.negatives]


def _answers(text: str, answers: set[str]) -> bool:
    """Return whether a text is an answer, a chunk of one, or a longer text that holds one."""
    return any(text in answer or answer in text for answer in answers)
