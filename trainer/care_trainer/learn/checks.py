"""Checks of stored vectors that no query encoder can be learned from: constant, mixed, or of other texts."""

import numpy as np
import numpy.typing as npt

from care_qdrant.errors import InputError
from care_qdrant.types import Vectors
from care_trainer.learn import table as tables
from care_trainer.models.tokens import TokenLists

_CHECKED = 2_000
"""Highest number of vectors that a check reads."""
_ROUNDS = 20
_MIN_VARIANCE = 1e-6
_MIN_SEPARATION = 0.15
"""Least silhouette of two separate groups: by how much a vector is nearer to its own group, from -1 to 1."""
_MIN_GROUP = 0.02
_WORD_WIDTH = 512
_BEGINNING = 32
_MAX_CHANCE = 0.45
"""Largest accepted `chance_share`: it is at most 0.22 in collections of one model, 0.68 and more where half is of
another or shuffled (benchmarks/results/mixed-vectors.json)."""
_MAX_EXPLAINED = 0.5
"""Share of the grouping that words explain, from 0 to 1, from which groups are topics or languages, not two models."""


def require_learnable(vectors: Vectors, tokens: TokenLists, vocabulary: int, where: str) -> None:
    """Refuse constant vectors, texts without tokens and vectors of two models."""
    if not len(tokens.flat):
        raise InputError(f"{where}: the texts have neither letters nor digits, so there is nothing to learn from")
    if float(vectors[:_CHECKED].var(axis=0).sum()) < _MIN_VARIANCE:
        raise InputError(
            f"{where}: all stored vectors are the same; the model that made them does not tell texts apart"
        )
    group = _two_means(vectors[:_CHECKED])
    share = float(min(group.mean(), 1 - group.mean()))
    if share < _MIN_GROUP or (separation := _silhouette(vectors[:_CHECKED], group)) < _MIN_SEPARATION:
        return
    explained = _explained(tokens.take(np.arange(len(group))), group, vocabulary)
    if explained < _MAX_EXPLAINED:
        raise InputError(
            f"{where}: the vectors fall into two groups ({share:.0%} and {1 - share:.0%}, silhouette {separation:.2f}) "
            f"that the texts do not explain ({explained:.0%}): two models wrote under one name. Encode the smaller "
            "group again with the model of the larger one"
        )


def require_belonging(vectors: Vectors, tokens: TokenLists, vocabulary: int, where: str) -> None:
    """Refuse vectors that do not follow the words of their texts; the tokens are the collection's own."""
    read = tokens.take(np.arange(min(_CHECKED, len(tokens))))
    chance = chance_share(vectors[:_CHECKED], read, vocabulary)
    if chance > _MAX_CHANCE:
        raise InputError(
            f"{where}: the vectors of {chance:.0%} of the texts are as far as chance from the vectors of texts with "
            "the same words: two models wrote under one name, or vectors belong to other texts (shuffled, or another "
            "field). Encode all texts again with one model"
        )


def chance_share(vectors: Vectors, tokens: TokenLists, vocabulary: int) -> float:
    """Return the fraction of texts whose vectors are unrelated to the vector of the text most similar in words.

    One model puts texts of the same words near each other. Ranked by nearness to a text's vector, the vector of its
    nearest text in words has an early rank then, and any rank with equal probability where two models made the two or
    one of them belongs to another text. Chance puts half of its ranks behind the middle, so twice the fraction there
    is the share of chance (Storey, 2002, with lambda 0.5). Only the half of the texts that have the nearest others is
    asked: the rest may have no text like them.
    """
    near = vectors @ vectors.T
    np.fill_diagonal(near, -np.inf)
    # The old model may have read only the beginning of its texts.
    return round(min(_chance_share(near, read, vocabulary) for read in (tokens, tokens.first(_BEGINNING))), 4)


def _chance_share(near: Vectors, tokens: TokenLists, vocabulary: int) -> float:
    # Random token vectors give the cosine of weighted counts of words, to within 0.04.
    words = tables.encode(tables.start_table(tokens, vocabulary, _WORD_WIDTH, seed=0), tokens)
    alike = words @ words.T
    np.fill_diagonal(alike, -np.inf)
    nearest, at = alike.argmax(axis=1), np.arange(len(near))
    nearer = (near > near[at, nearest][:, None]).sum(axis=1) / max(1, len(near) - 2)
    likeness = alike[at, nearest]
    return min(1.0, 2 * float((nearer[likeness >= np.median(likeness)] > 0.5).mean()))


def _two_means(vectors: Vectors) -> npt.NDArray[np.bool_]:
    """Return which of two groups each vector is in, starting from the largest principal component around the mean."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred[:512], full_matrices=False)
    group = centred @ directions[0] > 0
    for _ in range(_ROUNDS):
        if group.all() or not group.any():
            break
        centres = np.stack([vectors[~group].mean(axis=0), vectors[group].mean(axis=0)])
        distances = ((vectors[:, None, :] - centres) ** 2).sum(axis=2)
        now = distances[:, 1] < distances[:, 0]
        if (now == group).all():
            break
        group = now
    return np.asarray(group, dtype=np.bool_)


def _silhouette(vectors: Vectors, group: npt.NDArray[np.bool_]) -> float:
    """Return the mean of (b - a) / max(a, b): squared distances to the vectors of the other and of the own group."""
    squares = (vectors**2).sum(axis=1)
    to_group = {
        side: squares - 2 * vectors @ vectors[group == side].mean(axis=0) + squares[group == side].mean()
        for side in (False, True)
    }
    own = np.where(group, to_group[True], to_group[False])
    other = np.where(group, to_group[False], to_group[True])
    return float(((other - own) / np.maximum(np.maximum(own, other), 1e-12)).mean())


def _explained(tokens: TokenLists, group: npt.NDArray[np.bool_], vocabulary: int) -> float:
    """Return how well naive Bayes, trained on the words of half of the texts, predicts the groups of the other half."""
    half = len(group) // 2
    odds = np.zeros(vocabulary)
    for side, sign in ((True, 1), (False, -1)):
        rows = np.flatnonzero(group[:half] == side)
        if not len(rows):
            return 1.0
        counts = np.bincount(tokens.take(rows).flat, minlength=vocabulary) + 0.5
        odds += sign * np.log(counts / counts.sum())
    test = tokens.take(np.arange(half, len(group)))
    sums = np.add.reduceat(np.append(odds[test.flat], 0.0), test.starts[:-1]) * (test.lengths > 0)
    correct = [((sums > 0) == side)[group[half:] == side] for side in (True, False)]
    rates = [float(flags.mean()) for flags in correct if len(flags)]
    return max(0.0, 2 * float(np.mean(rates)) - 1)
