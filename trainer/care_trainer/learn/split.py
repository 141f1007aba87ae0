"""The split of documents into those that are trained on and those that are held out: a test without judgements.

A sentence or the title of a held-out document has to find its document.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from care_qdrant.types import Vectors, embedded_text
from care_trainer.learn.earlier import Earlier
from care_trainer.learn.near import near_copies
from care_trainer.learn.reading import Pairs
from care_trainer.learn.settings import LearnSettings

MAX_HELD_OUT = 1_000
_MIN_HELD_OUT = 50
_CANDIDATES = 20_000
"""Documents among which a question has to find its own."""
_MOST_COPIES = 0.5
"""Fraction of the other documents that are left out of the training as near-copies of held-out ones, at most."""
_SENTENCE_END = re.compile(r"(?<=[。！？!?；;\n])|(?<=\.)\s")
_MIN_CHARACTERS, _MAX_CHARACTERS = 8, 80
_BLOCK = 256
_TIE = 1e-6
_MIN_NORM = 1e-6
"""Shortest norm of a usable query vector; a shorter one finds nothing."""


def candidate_rows(held: npt.NDArray[np.int64], train: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the documents among which questions have to find their own: the held-out ones first, then others."""
    return np.concatenate([held, train[: max(0, _CANDIDATES - len(held))]])


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The quality on held-out documents: each has to be found by a question that was made of it."""

    queries: int
    candidates: int
    recall_at_1: float
    recall_at_10: float
    mrr: float
    """Mean reciprocal rank, from 0 to 1."""
    percentile: float
    """Mean fraction of the candidates that rank below the document; 0.5 is chance."""


@dataclass(frozen=True, slots=True)
class Split:
    """The texts and vectors of a collection, split into what is trained on and what is measured."""

    pairs: Pairs
    texts: list[str]
    train: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    copies: npt.NDArray[np.int64]
    """Near-copies of held-out documents: neither trained on before the measurement nor among its candidates."""
    has_copies_in_training: bool
    """Whether near-copies of held-out documents are trained on, since most of the documents are such."""
    questions: list[str]
    """Questions made of the held-out documents, one for each."""
    candidates: Vectors
    """Stored vectors of the held-out documents, then of others."""
    continues: bool = False
    """Whether training continues from an earlier encoder: there are enough documents that it has not learned from."""

    @classmethod
    def of(cls, pairs: Pairs, settings: LearnSettings, earlier: Earlier | None) -> "Split":
        """Hold some documents out; new ones where training continues from an encoder that knows the others."""
        generator = np.random.default_rng([settings.seed, 3])
        order = generator.permutation(len(pairs.texts))
        most = min(MAX_HELD_OUT, max(_MIN_HELD_OUT, round(len(order) * settings.held_out)))
        asking = np.array([_asks(text) for text in pairs.texts])
        new = asking & (False if earlier is None else earlier.is_new(pairs.ids))
        if continues := bool(new.sum() >= 2 * _MIN_HELD_OUT):
            most = min(most, int(new.sum()) // 2)
        order = order[np.argsort(~(new if continues else asking)[order], kind="stable")]
        held, train = order[:most], order[most:]
        texts = [embedded_text(title, text) for title, text in zip(pairs.titles, pairs.texts, strict=True)]
        is_copy = near_copies(texts, held)
        if is_without_rest := bool(is_copy[train].mean() > _MOST_COPIES):
            is_copy[train] = False
        held, train, copies = held[~is_copy[held]], train[~is_copy[train]], order[is_copy[order]]
        questions = [question_of(pairs.texts[row], pairs.titles[row], generator) for row in held]
        candidates = pairs.vectors[candidate_rows(held, train)]
        return cls(pairs, texts, train, held, copies, is_without_rest, questions, candidates, continues)

    def ranks(self, encoded: Vectors) -> npt.NDArray[np.float64]:
        """Return the rank of each question's document by an encoder's vectors of the questions."""
        return ranks(encoded, self.candidates, np.arange(len(self.held)))

    def score(self, encoded: Vectors) -> HeldOut:
        """Measure an encoder by its vectors of the questions, in the learned space."""
        return measure(self.ranks(encoded), len(self.candidates))

    def drift(self, earlier: Earlier, settings: LearnSettings) -> HeldOut | None:
        """Return the quality of an earlier encoder on documents that it has not seen, None where there are none."""
        asking = np.array([_asks(text) for text in self.pairs.texts])
        new = np.flatnonzero(earlier.is_new(self.pairs.ids) & asking)[:MAX_HELD_OUT]
        if not len(new):
            return None
        generator = np.random.default_rng([settings.seed, 4])
        questions = [question_of(self.pairs.texts[row], self.pairs.titles[row], generator) for row in new]
        candidates = np.concatenate([self.pairs.vectors[new], self.candidates])
        encoded = replace(earlier.table, basis=None).encode(questions)
        return measure(ranks(encoded, candidates, np.arange(len(new))), len(candidates))


def question_of(text: str, title: str, generator: np.random.Generator) -> str:
    """Return the title of a document, or one of its sentences, or a part of it where it has no short sentence.

    A line without a letter or a digit, such as ``----------``, asks for nothing.
    """
    if _asks(title):
        return title
    sentences = [part.strip() for part in _SENTENCE_END.split(text) if _asks(part)]
    short = [part for part in sentences if _MIN_CHARACTERS <= len(part) <= _MAX_CHARACTERS and part != text.strip()]
    if short:
        return short[int(generator.integers(len(short)))]
    size = max(_MIN_CHARACTERS, min(_MAX_CHARACTERS, len(text) // 3))
    start = int(generator.integers(max(1, len(text) - size)))
    if not _asks(text[start : start + size]):
        start = next((at for at, character in enumerate(text) if character.isalnum()), 0)
    return text[start : start + size]


def _asks(text: str) -> bool:
    """Return whether a text has a letter or a digit, so that it can be searched for."""
    return any(map(str.isalnum, text))


def ranks(
    queries: Vectors, candidates: npt.NDArray[np.floating], answers: Sequence[int] | npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """Return the rank of each answer among the candidates by inner product, from 1.

    Candidates of equal scores share their mean rank, which a random order gives on average. A query without a usable
    vector does not find its answer, which then ranks behind all candidates.
    """
    places = np.empty(len(queries), dtype=np.float64)
    rows = np.asarray(answers)
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = queries[block] @ candidates.T
        own = scores[np.arange(len(scores)), rows[block]]
        better, at_least = ((scores > own[:, None] + margin).sum(axis=1) for margin in (_TIE, -_TIE))
        places[block] = (better + at_least + 1) / 2
    is_usable = np.linalg.norm(queries, axis=1) >= _MIN_NORM  # False for NaN
    return np.where(is_usable, places, len(candidates) + 1)


def measure(ranked: npt.NDArray[np.floating], candidates: int) -> HeldOut:
    """Return the figures of some ranks; a rank behind all candidates counts as not found."""
    is_found = ranked <= candidates
    return HeldOut(
        queries=len(ranked),
        candidates=candidates,
        recall_at_1=round(float((is_found & (ranked <= 1)).mean()), 4),
        recall_at_10=round(float((is_found & (ranked <= 10)).mean()), 4),
        mrr=round(float((is_found / ranked).mean()), 4),
        percentile=round(float(1 - (np.minimum(ranked, candidates) - 1).mean() / max(1, candidates - 1)), 4),
    )
