"""The quality of a learned query encoder on labelled questions, compared with BM25 and the old model.

They are searched in the collection itself: its index, its quantisation, its BM25, the product's fusion. They need
no contract, so that an encoder which is not registered is measured as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from care_qdrant import Collection, Hit
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.measures import TOP, Estimate, estimate, ndcg_at_10, recall_at_10, reciprocal_rank_at_10
from care_qdrant.search.judged import KnownLabels, Unit, ranked_ids
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolved import ResolvedCollection, StoreConfig, resolve_vectors
from care_qdrant.types import TermVector, Vectors

_BATCH = 64
_DEPTH = 100
"""Points that are retrieved where documents are ranked: chunks of a few of them may fill the first ten places."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The quality of one kind of search; relevance is binary, and a question without an answer counts as 0."""

    ndcg_at_10: Estimate
    recall_at_10: Estimate
    """Fraction of the relevant points or documents that are among the first ten."""
    mrr_at_10: Estimate
    """Mean reciprocal rank of the first relevant one; 0 beyond the first ten."""


@dataclass(frozen=True, slots=True)
class LabelledQuality:
    """Quality on labelled questions that were not trained on, over the whole collection."""

    unit: Unit
    """Kind of the labels' ids, and of what is ranked."""
    questions: int
    relevant: int
    """Relevant points or documents of these questions."""
    unknown_ids: int
    """Distinct ids of the labels that the collection does not have; they are left out."""
    left_out: int
    """Questions that have only such ids, left out with them."""
    learned: Ranking
    """The learned encoder alone."""
    bm25: Ranking | None
    """BM25 alone; None where the collection has no BM25 vector of this package."""
    hybrid: Ranking | None
    """The learned encoder and BM25, in the fusion that a search uses by default."""
    old_model: Ranking | None
    """The model that made the vectors, by its own query vectors; None where not every question has one."""


def measure_labelled(
    collection: Collection,
    vector_name: str,
    labels: KnownLabels,
    learned: Vectors,
    alpha: float | None,
    hnsw_ef: int | None,
    seed: int,
) -> LabelledQuality:
    """Search the collection with labelled questions, and compare the hits with the relevant ones.

    The learned encoder searches with its own ``alpha`` and ``hnsw_ef``, the old model with the server's width.
    """
    config = StoreConfig(sparse=None, vector_name=vector_name)
    plain = replace(resolve_vectors(collection, collection.schema, config, checked_at=0.0), hnsw_ef=None)
    find_alpha = plain.find_alpha if alpha is None else partial(float, alpha)
    resolved = replace(plain, find_alpha=find_alpha, hnsw_ef=hnsw_ef)
    questions = labels.questions
    depth = TOP if labels.unit == "points" else min(_DEPTH, resolved.limits.query or _DEPTH)
    count = len(questions.texts)
    has_bm25 = resolved.sparse_vector_name is not None
    analyser = DEFAULT if resolved.bm25 is None else resolved.bm25.analyser
    terms = [bm25.query_vector(text, analyser) for text in questions.texts] if has_bm25 else None

    def ranking(
        vectors: Vectors | None, terms: Sequence[TermVector] | None, where: ResolvedCollection = resolved
    ) -> Ranking:
        dense = [None] * count if vectors is None else vectors.tolist()
        lexical: Sequence[TermVector | None] = terms or [None] * count
        queries = [Query(*asked, depth) for asked in zip(dense, lexical, strict=True)]
        ranked, relevant = [ranked_ids(labels, hits) for hits in _answers(where, queries)], questions.relevant
        return Ranking(
            ndcg_at_10=estimate(ndcg_at_10(ranked, relevant), seed),
            recall_at_10=estimate(recall_at_10(ranked, relevant), seed),
            mrr_at_10=estimate(reciprocal_rank_at_10(ranked, relevant), seed),
        )

    return LabelledQuality(
        unit=labels.unit,
        questions=len(questions.texts),
        relevant=sum(map(len, questions.relevant)),
        unknown_ids=labels.unknown_ids,
        left_out=labels.left_out,
        learned=ranking(learned, None),
        bm25=None if terms is None else ranking(None, terms),
        hybrid=None if terms is None else ranking(learned, terms),
        old_model=None if questions.vectors is None else ranking(questions.vectors, None, plain),
    )


def _answers(resolved: ResolvedCollection, queries: Sequence[Query]) -> list[list[Hit]]:
    """Return the hits of each query; none for an empty query."""
    answers = []
    for start in range(0, len(queries), _BATCH):
        results = find(resolved, queries[start : start + _BATCH], "searching for the labelled questions")
        answers += [lists[0] if lists else [] for lists in results]
    return answers


def rankings(quality: LabelledQuality) -> Mapping[str, Ranking]:
    """Return the measured rankings by their names in the report."""
    named = {
        "learned": quality.learned,
        "BM25": quality.bm25,
        "learned and BM25": quality.hybrid,
        "old model": quality.old_model,
    }
    return {name: ranking for name, ranking in named.items() if ranking is not None}
