"""Good matches: the good-match score of a collection, and the queries that a model does not read.

Scores of two encoders, or of two collections, have no common scale, and the nearest text is always found. The
good-match score is the score that most questions of the collection itself reach in *another* document: a question of
this field reaches it, a query from elsewhere does not. It is measured once, with questions of the points whose ids come
first, and kept in the collection's metadata, so that every program says the same of a hit until the collection has
changed markedly.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from care_qdrant.contracts.layouts import read_hit
from care_qdrant.contracts.metadata import GOOD_MATCH
from care_qdrant.errors import UnusableText
from care_qdrant.qdrant.measurements import Measurement
from care_qdrant.search.fusion import NEAREST_LEAST
from care_qdrant.search.overview import SAMPLE_POINTS, Question, own_questions
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Hit, Vectors

QUESTIONS = 64
"""Questions that are asked. Draws of so many differ by 0.04 in half of the cases that 32 differ by 0.07."""
MIN_QUESTIONS = 16
"""Fewest questions of a measurement; fewer say nothing about the lowest of their scores."""
QUANTILE = 0.2
"""Chosen on the sample corpus, tried on another one: benchmarks/results/good-match.json."""
_BATCH = 8
"""Questions of one request: searches of others get their turn at the embedded database in between."""


@dataclass(frozen=True, slots=True)
class GoodMatch:
    """The lowest score of a good match in one collection, by one model and mode."""

    score: float | None
    """The good-match score; None for a collection that is too small to tell."""
    points: int
    """About how many points the collection had."""


@dataclass(frozen=True, slots=True)
class Match:
    """The verdict on whether the best hit of a query answers it, as far as a score tells."""

    is_good: bool | None
    """Whether the best hit is a good match; None where nothing tells."""
    good_match_score: float | None
    """The score that it is compared with."""
    unread: tuple[str, ...] = ()
    """Words of the query that the model does not read, where they are most of it: its scores mean nothing then."""


def judge(hits: Sequence[Hit], good_match: GoodMatch | None, unread: Sequence[str]) -> Match:
    """Return whether the best hit is a good match.

    Args:
        hits: Of one query, best first.
        good_match: Good-match score of the collection, by the same model and mode; None where it is not known.
        unread: Words of the query that the model does not read (`CareModel.unread`).
    """
    score = None if good_match is None else good_match.score
    if not hits:
        return Match(False, score, tuple(unread))
    # Terms are compared letter by letter: a text that holds the words themselves was found by them.
    text = f"{hits[0].title}\n{hits[0].text}".lower()
    if unread and 2 * sum(word.lower() in text for word in unread) <= len(unread):
        return Match(False, score, tuple(unread))
    return Match(None if score is None else hits[0].score >= score, score)


def known_good_match(retriever: Retriever) -> GoodMatch | None:
    """Return the good-match score in a collection's metadata; None if it has none, or an outdated one.

    That is so where the collection has changed markedly since, and where terms of queries or the dense list count
    otherwise than they did. Distances have no good-match score, since lower is better. It costs no request
    beyond the check of the contract, where that is due; a hybrid search whose dense share is not known yet
    measures it first.
    """
    if not retriever.is_plain or retriever.fingerprint is None:
        return None
    schema, resolved = retriever.schema, retriever.resolved
    if resolved.sparse_vector_name is None and resolved.distance in NEAREST_LEAST:
        return GoodMatch(None, schema.points)
    return _measurement(retriever).find(
        schema.metadata,
        schema.points,
        lambda entry: GoodMatch(None if entry["score"] is None else float(entry["score"]), int(entry["points"])),
    )


def fixed_questions(retriever: Retriever) -> list[Question]:
    """Return the questions that a good-match score is measured with, the same ones each time."""
    # In the order of ids, which are hashes or random from ingestion and most tools. Where ids count up, these are the
    # oldest points.
    pages = retriever.resolved.collection.scroll("reading a sample", limit=SAMPLE_POINTS)
    return own_questions(map(read_hit, chain.from_iterable(pages)))[:QUESTIONS]


def measure_good_match(
    retriever: Retriever,
    questions: Sequence[Question],
    encode: Callable[[Sequence[str]], Vectors] | None = None,
    seconds: float = 60.0,
) -> GoodMatch | None:
    """Measure the good-match score of a collection, and keep it in its metadata; None where the time was not enough.

    Each question is searched, and its best hit without its own document counts.

    Args:
        retriever: Of the collection.
        questions: `fixed_questions`.
        encode: Makes the query vectors in place of the model's own call.
        seconds: Longest time that it may take.
    """
    until, scores = time.monotonic() + seconds, []
    for start in range(0, len(questions), _BATCH):
        if time.monotonic() > until:
            return None
        asked = questions[start : start + _BATCH]
        try:
            answers = retriever.search([question.text for question in asked], 2, encode=encode)
        except UnusableText:  # one has no token that the model weighs
            continue
        for question, hits in zip(asked, answers, strict=True):
            others = (hit.score for hit in hits if hit.document_id != question.document_id)
            scores += list(others)[:1]
    enough = len(scores) >= MIN_QUESTIONS
    good_match = GoodMatch(float(np.quantile(scores, QUANTILE)) if enough else None, retriever.schema.points)
    if retriever.is_plain and retriever.resolved.schema.unfinished is None:
        # As text: a server may return a number of its metadata with another last bit.
        score = None if good_match.score is None else repr(good_match.score)
        measurement = _measurement(retriever)
        measurement.keep(retriever.resolved.collection, measurement.change({"score": score}, good_match.points))
    return good_match


def _measurement(retriever: Retriever) -> Measurement:
    resolved = retriever.resolved
    made_with = {"vector": resolved.vector_name, "sparse": resolved.sparse_vector_name, "scale": retriever.scale}
    return Measurement(GOOD_MATCH, f"{retriever.mode}:{(retriever.fingerprint or '')[:16]}", made_with)
