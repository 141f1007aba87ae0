"""The check that int8 vectors may stand in for float32 ones, on real queries when a model is exported."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from care_qdrant.encoders.agreement import LEAST_INT8, LEAST_MEAN_INT8, cosines
from care_qdrant.measures import TOP, ndcg_at_10
from care_qdrant.types import Vectors

LEAST_OVERLAP = 0.95
"""Least share of the ten best documents that both agree on."""
MOST_NDCG_DROP = 0.005
"""Largest loss of nDCG@10 from float32 to int8 vectors."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The loss by int8, measured over the probe queries."""

    probes: int
    min_cosine: float
    """Lowest cosine of an int8 query vector with its float32 one; passes from 0.995."""
    mean_cosine: float
    """Mean cosine of an int8 query vector with its float32 one; passes from 0.999."""
    overlap_at_10: float | None = None
    """Mean share of the ten best documents that both agree on; passes from 0.95. None without documents."""
    ndcg_at_10_fp32: float | None = None
    ndcg_at_10_int8: float | None = None
    """nDCG@10 with int8 query vectors, which may be 0.005 below the float32 one. None without judgements."""

    @property
    def passed(self) -> bool:
        """Whether int8 may be the default."""
        return (
            self.min_cosine >= LEAST_INT8
            and self.mean_cosine >= LEAST_MEAN_INT8
            and (self.overlap_at_10 is None or self.overlap_at_10 >= LEAST_OVERLAP)
            and (
                self.ndcg_at_10_fp32 is None
                or self.ndcg_at_10_int8 is None
                or self.ndcg_at_10_int8 >= self.ndcg_at_10_fp32 - MOST_NDCG_DROP
            )
        )


def compare(
    fp32: Vectors,
    int8: Vectors,
    document_vectors: Vectors | None = None,
    relevant: Sequence[Collection[int]] | None = None,
) -> Gate:
    """Measure the int8 vectors of some queries against their float32 ones."""
    agreement = cosines(int8.astype(np.float64), fp32.astype(np.float64))
    overlap = ndcg_fp32 = ndcg_int8 = None
    if document_vectors is not None:
        best_fp32, best_int8 = _best(fp32, document_vectors), _best(int8, document_vectors)
        overlap = _overlap(best_fp32, best_int8)
        if relevant is not None:
            ndcg_fp32, ndcg_int8 = _ndcg(best_fp32, relevant), _ndcg(best_int8, relevant)
    return Gate(
        probes=len(fp32),
        min_cosine=round(float(agreement.min()), 6),
        mean_cosine=round(float(agreement.mean()), 6),
        overlap_at_10=overlap,
        ndcg_at_10_fp32=ndcg_fp32,
        ndcg_at_10_int8=ndcg_int8,
    )


def _best(queries: Vectors, documents: Vectors) -> list[list[int]]:
    """Return the rows of each query's best documents, best first; one query at a time, so memory stays flat."""
    return [np.argsort(-(documents @ query), kind="stable")[:TOP].tolist() for query in queries]


def _overlap(first: list[list[int]], second: list[list[int]]) -> float:
    shares = [len(set(a) & set(b)) / len(a) for a, b in zip(first, second, strict=True)]
    return round(float(np.mean(shares)), 6)


def _ndcg(best: list[list[int]], relevant: Sequence[Collection[int]]) -> float:
    """Return the mean binary nDCG@10 over the queries that have a relevant document."""
    judged = [at for at, answers in enumerate(relevant) if answers]
    return round(float(np.mean(ndcg_at_10([best[at] for at in judged], [relevant[at] for at in judged]))), 6)
