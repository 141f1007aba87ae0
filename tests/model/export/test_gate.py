import math

import numpy as np
import pytest

from care_qdrant.model.export.gate import compare
from care_qdrant.types import Vectors


def unit(rows: list[list[float]]) -> Vectors:
    array = np.array(rows, dtype=np.float32)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def random_units(count: int, dim: int, seed: int) -> Vectors:
    return unit(np.random.default_rng(seed).normal(size=(count, dim)).tolist())


def test_equal_vectors_pass_with_every_figure_at_its_best() -> None:
    queries, documents = random_units(5, 8, 0), random_units(40, 8, 1)
    best = [int(np.argmax(documents @ query)) for query in queries]

    gate = compare(queries, queries, documents, [[row] for row in best])

    assert gate.passed
    assert (gate.probes, gate.min_cosine, gate.mean_cosine, gate.overlap_at_10) == (5, 1.0, 1.0, 1.0)
    assert (gate.ndcg_at_10_fp32, gate.ndcg_at_10_int8) == (1.0, 1.0)


def test_cosines_are_those_of_each_query_to_itself() -> None:
    gate = compare(unit([[1, 0], [0, 1]]), unit([[1, 0], [0.6, 0.8]]))

    assert (gate.min_cosine, gate.mean_cosine) == (pytest.approx(0.8), pytest.approx(0.9))
    assert not gate.passed
    assert gate.overlap_at_10 is None


def test_one_bad_query_among_many_good_ones_fails() -> None:
    fp32 = random_units(1_000, 16, 0)
    int8 = fp32.copy()
    int8[0] = unit([(fp32[0] + 0.3 * random_units(1, 16, 9)[0]).tolist()])[0]

    gate = compare(fp32, int8)

    assert gate.mean_cosine > 0.999
    assert not gate.passed


def test_other_documents_fail_even_where_cosines_are_high() -> None:
    """Documents that lie closer together than int8 resolves: the vectors hardly move, the ranking does."""
    rng = np.random.default_rng(0)
    fp32 = random_units(4, 64, 0)
    int8 = unit((fp32 + rng.normal(size=fp32.shape) * 0.003).tolist())
    documents = unit((fp32[[0]] + rng.normal(size=(400, 64)) * 1e-4).tolist())

    gate = compare(fp32, int8, documents)

    assert gate.mean_cosine > 0.999
    assert gate.overlap_at_10 is not None
    assert gate.overlap_at_10 < 0.95
    assert not gate.passed


def test_ndcg_is_the_binary_one_over_answered_queries() -> None:
    documents = np.eye(4, dtype=np.float32)
    fp32, int8 = unit([[4, 3, 2, 1], [4, 3, 2, 1]]), unit([[3, 4, 2, 1], [3, 4, 2, 1]])

    gate = compare(fp32, int8, documents, [[0], []])

    assert gate.ndcg_at_10_fp32 == 1.0
    assert gate.ndcg_at_10_int8 == pytest.approx(1 / math.log2(3), abs=1e-6)
    assert not gate.passed
