"""Weights of query terms: what they multiply, and which files are refused."""

from pathlib import Path

import numpy as np
import pytest

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.weights import TermWeights
from care_qdrant.errors import ModelError


@pytest.fixture
def weights() -> TermWeights:
    terms = {bm25.term_id(term): weight for term, weight in (("怎么", 0.25), ("怎", 0.5), ("感", 2.0))}
    order = sorted(terms)
    return TermWeights(np.array(order, np.uint32), np.array([terms[term] for term in order], np.float32))


def test_counts_are_multiplied_and_unknown_terms_count_as_they_are(weights: TermWeights, tmp_path: Path) -> None:
    text = "怎么感冒，怎么 HbA1c"
    plain = bm25.query_vector(text)
    expected = dict(zip(plain.indices, plain.values, strict=True))
    for term, value in (("怎么", 0.5), ("怎", 1.0), ("感", 2.0)):
        expected[bm25.term_id(term)] = value
    weights.save(tmp_path / "weights.npz")
    for found in (weights, TermWeights.load(tmp_path / "weights.npz")):
        vector = found.query_vector(text)
        assert dict(zip(vector.indices, vector.values, strict=True)) == expected
        assert vector.indices == plain.indices
        assert found.query_vector("，。").indices == []


def test_terms_of_another_analyser_are_refused(
    weights: TermWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights.save(tmp_path / "weights.npz")
    monkeypatch.setattr("care_qdrant.encoders.terms.weights.ANALYSER", "zh-words-2")
    with pytest.raises(ModelError, match=r"analyser 'zh-char-bigram-1', this version has 'zh-words-2'"):
        TermWeights.load(tmp_path / "weights.npz")


@pytest.mark.parametrize("content", [b"", b"not an archive", None])
def test_files_that_hold_no_weights_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights.npz"
    if content is None:
        np.savez(path, other=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ModelError, match="holds no weights of terms"):
        TermWeights.load(path)
