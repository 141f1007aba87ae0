"""The share of the dense score in a hybrid search, where neither the model nor the caller gives one.

Some models' cosines differ by tenths from document to document; others, such as E5's, lie between 0.7 and 0.9 and
differ by hundredths. Added to BM25 with the same weight, the latter decide nothing. So the weight is measured: the
collection's own questions are scored with a sample of its points, and both kinds of scores are weighted by their
spread. That needs no judgements. On six collections with E5, nDCG@10 rose from 0.665 to 0.686
(docs/evidence/experiments.md). The share is kept in the collection's metadata, for every program.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
from qdrant_client import models

from care_qdrant.contracts.layouts import read_hit
from care_qdrant.contracts.learned import stored_vector
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.search.fusion import bm25_weight
from care_qdrant.search.overview import SAMPLE_POINTS, own_questions
from care_qdrant.types import TermVector, Vectors

logger = logging.getLogger(__name__)

DENSE_SHARE = 0.7
"""Weight of the dense score in a fusion of standardised scores. It is the best of 0.3 to 0.7 on a collection of 8,000
answers, for learned queries and for those of the model itself (docs/evidence/experiments.md)."""
_QUESTIONS, _MIN_QUESTIONS = 64, 16
_LEAST, _MOST = 0.3, 0.99

Scores = npt.NDArray[np.floating]


def balanced_alpha(dense: Scores, lexical: Scores) -> float:
    """Return the share of the dense score that makes a linear fusion one of standardised scores.

    Args:
        dense: Products of questions and documents, (questions, documents).
        lexical: The BM25 part of the linear fusion (`care_qdrant.search.fusion`), of the same shape.
    """
    spread_dense, spread_lexical = (float(scores.std(axis=1).mean()) for scores in (dense, lexical))
    dense_part, lexical_part = DENSE_SHARE * spread_lexical, (1 - DENSE_SHARE) * spread_dense
    return dense_part / ((dense_part + lexical_part) or 1.0)


def measured_alpha(
    collection: Collection,
    vector_name: str,
    sparse_vector_name: str,
    encode: Callable[[Sequence[str]], Vectors],
    terms: Callable[[str], TermVector],
) -> float | None:
    """Return the share that suits a collection's scores; None where it has too few points with text and both vectors.

    Args:
        collection: Read for a sample of its points.
        vector_name: Dense vector.
        sparse_vector_name: BM25 of this package.
        encode: Makes the vectors of questions.
        terms: Makes the terms of a question.
    """
    distance = collection.schema.dense[vector_name].distance
    if distance is models.Distance.MANHATTAN:
        return None
    pages = collection.scroll("reading a sample", limit=SAMPLE_POINTS, vectors=[vector_name, sparse_vector_name])
    points = [(record, vectors_of(record)) for record in chain.from_iterable(pages)]
    with_terms = [(record, vectors[sparse_vector_name]) for record, vectors in points if sparse_vector_name in vectors]
    rows = [stored_vector(record.vector, vector_name) for record, _ in with_terms]
    whole = [(record, sparse, row) for (record, sparse), row in zip(with_terms, rows, strict=True) if row is not None]
    questions = [question.text for question in own_questions(read_hit(record) for record, _, _ in whole)][:_QUESTIONS]
    if len(questions) < _MIN_QUESTIONS:
        return None
    try:
        documents = np.stack([row for _, _, row in whole])
        dense = encode(questions) @ documents.T
        if distance is models.Distance.EUCLID:  # as the linear fusion counts it, without what all documents share
            dense = dense - (documents**2).sum(axis=1) / 2
    except InputError as error:  # a title that the model cannot read
        logger.info("collection %r: the share of the dense score was not measured (%s)", collection.name, error)
        return None
    lexical = _lexical([sparse for _, sparse, _ in whole], [terms(question) for question in questions])
    if not lexical.any():
        return None
    alpha = round(min(max(balanced_alpha(dense, lexical), _LEAST), _MOST), 2)
    logger.info("collection %r: the dense score counts %g in hybrid searches, as measured", collection.name, alpha)
    return alpha


def _lexical(documents: Sequence[models.SparseVector], asked: Sequence[TermVector]) -> Scores:
    """Return the BM25 part of the linear fusion, with the sample's own document frequencies."""
    weights = [dict(zip(vector.indices, vector.values, strict=True)) for vector in documents]
    frequencies = Counter(chain.from_iterable(weights))
    scores = np.zeros((len(asked), len(documents)))
    for number, question in enumerate(asked):
        for term, value in zip(question.indices, question.values, strict=True):
            count = frequencies[term]
            idf = math.log(1 + (len(documents) - count + 0.5) / (count + 0.5))
            scores[number] += [value * idf * terms.get(term, 0.0) for terms in weights]
        scores[number] *= bm25_weight(question.values)
    return scores
