"""The BM25 vectors against a plain computation of the formula, and the analyser against what a reader expects."""

import math
from collections import defaultdict
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import sparse_vector
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT
from tests.tiny import medical_texts

K1, B, LEAD = 1.4, 0.6, 5.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("糖尿病", ["糖", "尿", "病", "糖尿", "尿病"]),
        ("癌", ["癌"]),
        ("體溫", ["體", "溫", "體溫"]),
        ("IL-6 与 il6", ["il6", "与", "il6"]),
        ("HbA1c，EGFR T790M；COVID-19", ["hba1c", "egfr", "t790m", "covid19"]),
        ("5-HT 5-HT3", ["5ht", "5ht3"]),
        ("5 mg 与 5mg", ["5mg", "与", "5mg"]),
        ("5-10mg", ["5", "10mg"]),
        ("6.1 mmol/L", ["6.1mmol/l"]),
        ("38.5℃", ["38.5°c"]),
        ("120/80 mmHg", ["120/80mmhg"]),
        ("0.9%", ["0.9%"]),
        ("10 months", ["10", "months"]),
        ("Ｂ超", ["b", "超"]),
        ("𠀀𠀁", ["𠀀", "𠀁", "𠀀𠀁"]),
        ("，。！ \x00\ud800", []),
        ("", []),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert list(DEFAULT.terms(text)) == expected


def test_pairs_do_not_reach_over_punctuation() -> None:
    assert "热咳" not in DEFAULT.terms("发热，咳嗽")


def test_a_change_of_the_analyser_needs_another_name() -> None:
    """Collections in production hold these indices: if this fails, the analyser needs another name."""
    assert DEFAULT.name == "zh-char-bigram-2"
    text = "服用二甲双胍 500mg 后 HbA1c 为 6.5%"
    assert sum(bm25.query_vector(text).indices) == 29_547_634_047


@given(st.text())
def test_any_text_gives_a_valid_vector(text: str) -> None:
    vector = bm25.document_vector(text, average_length=10.0)
    assert len(vector.indices) == len(vector.values) == len(set(vector.indices))
    assert all(0 <= index < 2**32 for index in vector.indices)
    assert all(math.isfinite(value) and value > 0 for value in vector.values)


def test_average_length_is_the_mean_of_the_weighed_terms() -> None:
    assert bm25.average_length(["糖尿病", "癌"], lead=None) == 3.0
    assert bm25.average_length(["糖尿病", "癌"], lead=2.0) == pytest.approx((2 * (1 + 2 / 3) + 1 / 2 + 1) / 2)
    assert bm25.average_length([]) == 1.0
    assert bm25.average_length(["。"]) == 1.0


@given(st.text(), st.floats(1, 1e4))
def test_a_term_counts_by_its_first_place_at_least(text: str, lead: float) -> None:
    weighed = bm25.term_counts(text, lead=lead)
    assert weighed.keys() == bm25.term_counts(text).keys()
    for term, position in DEFAULT.placed_terms(text):
        assert weighed[bm25.term_id(term)] >= 1 / (1 + position / lead) - 1e-12


def test_what_a_document_says_first_counts_more() -> None:
    first, last = "高血压的饮食。糖尿病的用药", "糖尿病的用药。高血压的饮食"
    with closing(_indexed([first, last])) as client:
        found = client.query_points("c", query=sparse_vector(bm25.query_vector("高血压")), using="bm25").points
    assert [point.id for point in found] == [0, 1]
    assert found[0].score > 1.2 * found[1].score


@pytest.mark.parametrize("lead", [None, LEAD])
def test_qdrant_gives_the_scores_and_the_order_of_plain_bm25(lead: float | None) -> None:
    documents = medical_texts(60)
    queries = ["二甲双胍恶心怎么办，恶心", "HbA1c 6.5%", "EGFR", "咳嗽 有痰"]
    with closing(_indexed(documents, lead)) as client:
        for query in queries:
            expected = _plain_bm25(query, documents, lead)
            found = client.query_points(
                "c", query=sparse_vector(bm25.query_vector(query)), using="bm25", limit=60
            ).points
            assert len(found) == len(expected) > 0
            assert [point.score for point in found] == pytest.approx(sorted(expected.values(), reverse=True), rel=1e-5)
            assert {point.id: point.score for point in found} == pytest.approx(expected, rel=1e-5)


def _indexed(documents: list[str], lead: float | None = LEAD) -> QdrantClient:
    client = QdrantClient(":memory:")
    config = {"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)}
    client.create_collection("c", vectors_config={}, sparse_vectors_config=config)
    average = bm25.average_length(documents, lead=lead)
    vectors = [
        sparse_vector(bm25.document_vector(text, average_length=average, k1=K1, b=B, lead=lead)) for text in documents
    ]
    client.upsert("c", [models.PointStruct(id=n, vector={"bm25": v}) for n, v in enumerate(vectors)])
    return client


def _plain_bm25(query: str, documents: list[str], lead: float | None) -> dict[int, float]:
    counts = [_counts(text, lead) for text in documents]
    mean = sum(sum(c.values()) for c in counts) / len(counts)
    scores: dict[int, float] = {}
    for term in DEFAULT.terms(query):
        holders = [n for n, c in enumerate(counts) if term in c]
        idf = math.log(1 + (len(documents) - len(holders) + 0.5) / (len(holders) + 0.5))
        for n in holders:
            tf, length = counts[n][term], sum(counts[n].values())
            scores[n] = scores.get(n, 0.0) + idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / mean))
    return scores


def _counts(text: str, lead: float | None) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for term, position in DEFAULT.placed_terms(text):
        counts[term] += 1 if lead is None else 1 / (1 + position / lead)
    return counts
