"""The quality of a learned query encoder, measured before anyone uses it, and the limits that it has to reach."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import analyser_for
from care_qdrant.encoders.terms.languages import language_of
from care_qdrant.model.export.gate import compare
from care_qdrant.search.fusion import bm25_weight
from care_qdrant.search.judged import Questions
from care_qdrant.search.share import balanced_alpha
from care_qdrant.types import Vectors
from care_trainer.learn.split import HeldOut

MIN_RECALL_AT_10 = 0.3
"""Fraction of the held-out questions that find their own document among the first ten; below, learning has failed."""
CHANCE_PERCENTILE = 0.6
"""Mean percentile below which texts and vectors have nothing to do with each other; 0.5 is chance."""
MIN_KEPT = 0.9
"""Share of the old model's nDCG@10 below which the loss is warned of before the encoder is registered."""
_FUSION_QUESTIONS = 100
FUSION_DOCUMENTS = 2_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of the learned encoder with the old model, on questions that it has not seen."""

    questions: int
    overlap_at_10: float
    """Mean fraction of the old model's ten best documents that are among the learned encoder's ten best."""
    ndcg_at_10: float
    """nDCG@10 of the learned encoder, with the old model's ten best documents as the relevant ones."""
    mean_cosine: float
    """Mean cosine between the two models' query vectors."""


def agreement(learned: Vectors, questions: Questions, documents: Vectors) -> Agreement:
    """Compare learned query vectors with the old model's by what they find among documents."""
    best = [set(np.argpartition(-(documents @ query), 10)[:10].tolist()) for query in questions.vectors]
    comparison = compare(questions.vectors, learned, documents, best)
    return Agreement(
        questions=len(learned),
        overlap_at_10=float(comparison.overlap_at_10 or 0.0),
        ndcg_at_10=float(comparison.ndcg_at_10_int8 or 0.0),
        mean_cosine=comparison.mean_cosine,
    )


def verdict(held_out: HeldOut) -> str | None:
    """Return the reason why an encoder of this quality must not be used, or None if it may be used."""
    if held_out.percentile < CHANCE_PERCENTILE:
        return (
            f"a held-out document ranks above {held_out.percentile:.0%} of the others for its own sentence, and 50% is "
            "chance: the stored texts are not those that the vectors were made of (shuffled, or another field)"
        )
    if held_out.recall_at_10 < MIN_RECALL_AT_10:
        return (
            f"only {held_out.recall_at_10:.0%} of the held-out documents are among the first ten for their own "
            f"sentence or title, expected at least {MIN_RECALL_AT_10:.0%}: the collection is too small or too varied"
        )
    return None


def held_out_deviations(questions: Vectors, documents: Vectors) -> str:
    """Return how far the best documents of questions stand out, as `LearnedContract.held_out_deviations` keeps it."""
    scores = questions @ documents.T
    best = (scores.max(axis=1) - scores.mean(axis=1)) / np.maximum(scores.std(axis=1), 1e-12)
    return " ".join(f"{deviation:.4f}" for deviation in np.quantile(best, np.linspace(0, 1, 21)))


def loss_warning(kept: float | None) -> str | None:
    """Return the warning about an encoder that keeps too little of the old model's nDCG@10; None if it keeps enough."""
    if kept is None or kept >= MIN_KEPT:
        return None
    return (
        f"the learned encoder keeps {kept:.0%} of the old model's nDCG@10 on your labelled questions, less than "
        f"{MIN_KEPT:.0%}: keep the old model for queries where that matters, or give more questions with its vectors "
        "to learn from (--queries)"
    )


def fusion_alpha(questions: Sequence[str], vectors: Vectors, texts: Sequence[str], documents: Vectors) -> float | None:
    """Return the share of the dense score in the linear fusion that is a fixed share of standardised scores.

    Needs no judgements: BM25 scores and similarities are standardised by their mean deviations over some documents.
    """
    texts, documents = texts[:FUSION_DOCUMENTS], documents[:FUSION_DOCUMENTS]
    scores = _lexical_scores(questions[:_FUSION_QUESTIONS], texts)
    if not scores.any():
        return None
    return round(balanced_alpha(vectors[:_FUSION_QUESTIONS] @ documents.T, scores), 3)


def _lexical_scores(questions: Sequence[str], texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the BM25 part of the linear fusion (`care_qdrant.search.fusion`), (questions, texts)."""
    analyser = analyser_for(language_of(texts))
    average = bm25.average_length(texts, analyser=analyser)
    postings: dict[int, list[tuple[int, float]]] = {}
    for row, text in enumerate(texts):
        vector = bm25.document_vector(text, average_length=average, analyser=analyser)
        for term, weight in zip(vector.indices, vector.values, strict=True):
            postings.setdefault(term, []).append((row, weight))
    scores = np.zeros((len(questions), len(texts)))
    for number, question in enumerate(questions):
        terms = bm25.term_counts(question, analyser=analyser)
        for term, count in terms.items():
            posting = postings.get(term, [])
            idf = math.log(1 + (len(texts) - len(posting) + 0.5) / (len(posting) + 0.5))
            for row, weight in posting:
                scores[number, row] += idf * weight * count
        scores[number] *= bm25_weight(list(terms.values()))
    return scores
