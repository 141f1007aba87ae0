"""Scores of questions that one document answers each, over all documents of a collection at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from care_benchmarks.lexical import Bm25Matrix
from qdrant_client import models

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import Analyser
from care_qdrant.search.fusion import bm25_weight

Scores = npt.NDArray[np.floating]
QueryVector = Callable[[str, Analyser], models.SparseVector]


@dataclass(frozen=True, slots=True)
class Judged:
    """Questions and documents."""

    name: str
    questions: list[str]
    documents: list[str]
    answers: npt.NDArray[np.int64]
    """Row of the document that answers each question, (questions,)."""

    def ndcg_at_10(self, scores: Scores) -> Scores:
        """Return nDCG@10 of each question; a document with the score of the answer counts as better than it.

        Args:
            scores: Of all documents, (questions, documents).
        """
        answers = scores[np.arange(len(scores)), self.answers][:, None]
        ranks = (scores >= answers).sum(axis=1) - 1
        return np.where(ranks < 10, 1 / np.log2(ranks + 2), 0.0)


@dataclass(frozen=True, slots=True)
class Bm25:
    """BM25 by an analyser and its constants."""

    analyser: Analyser
    k1: float = bm25.DEFAULT_K1
    b: float = bm25.DEFAULT_B
    lead: float | None = bm25.DEFAULT_LEAD

    def scores(self, judged: Judged, query_vector: QueryVector = bm25.query_vector) -> Scores:
        """Return the sparse part of the product's linear fusion, (questions, documents)."""
        matrix = Bm25Matrix(self.documents(judged.documents))
        rows = [query_vector(question, self.analyser) for question in judged.questions]
        return np.stack([matrix.scores(row)[0] * bm25_weight(row.values) for row in rows])

    def documents(self, texts: Sequence[str]) -> list[models.SparseVector]:
        """Return the vectors of documents."""
        average = bm25.average_length(texts, lead=self.lead, analyser=self.analyser)
        return [
            bm25.document_vector(
                text, average_length=average, k1=self.k1, b=self.b, lead=self.lead, analyser=self.analyser
            )
            for text in texts
        ]


def fused(dense: Scores, sparse: Scores, share: float) -> Scores:
    """Return the product's linear fusion by a share of the dense score."""
    return share * dense + (1 - share) * sparse
