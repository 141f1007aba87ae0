"""Weights of query terms: the formula, what is beside a term, and which files are read and refused."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT, analyser_for
from care_qdrant.encoders.terms.weights import QueryTerms, Shape, Table, TermWeights
from care_qdrant.errors import ModelError

OWN = {"怎么": 0.25, "怎": 0.5, "感": 2.0}


def term_weights(contexts: dict[int, float] | None = None, shape: Shape | None = None) -> TermWeights:
    terms = {bm25.term_id(term): weight for term, weight in OWN.items()}
    order, beside = sorted(terms), sorted(contexts or {})
    return TermWeights(
        np.array(order, np.uint32),
        np.array([terms[term] for term in order], np.float32),
        Table(np.array(beside, np.uint32), np.array([(contexts or {})[key] for key in beside], np.float32)),
        shape or Shape(),
    )


@pytest.fixture
def weights() -> TermWeights:
    return term_weights()


def values(weights: TermWeights, text: str) -> dict[int, float]:
    vector = weights.query_vector(text)
    return dict(zip(vector.indices, vector.values, strict=True))


def contexts(text: str) -> dict[str, tuple[int, int, int]]:
    """Return the keys of each term of a text: kind, before, behind."""
    found = QueryTerms.of(text)
    keys = dict(zip(found.ids, zip(*[iter(found.contexts)] * 3, strict=True), strict=True))
    return {term: keys[bm25.term_id(term)] for term in DEFAULT.terms(text)}


def test_counts_are_multiplied_and_unknown_terms_count_as_they_are(weights: TermWeights, tmp_path: Path) -> None:
    text = "怎么感冒，怎么 HbA1c"
    plain = bm25.query_vector(text)
    expected = dict(zip(plain.indices, plain.values, strict=True))
    for term, value in (("怎么", 0.5), ("怎", 1.0), ("感", 2.0)):
        expected[bm25.term_id(term)] = value
    weights.save(tmp_path / "weights.npz")
    for found in (weights, TermWeights.load(tmp_path / "weights.npz")):
        assert values(found, text) == pytest.approx(expected)
        assert found.query_vector("，。").indices == []


def test_the_formula() -> None:
    text = "怎么感冒，怎么 HbA1c"
    keys, shape = contexts(text), Shape(0.8, 0.2, 0.3)
    kind, before, behind = keys["感"]
    found = values(term_weights({kind: 0.5, before: -0.25, behind: 1.0, keys["怎么"][2]: 0.125}, shape), text)
    counts = {"怎": 2, "么": 2, "感": 1, "冒": 1, "怎么": 2, "么感": 1, "感冒": 1, "hba1c": 1}
    logarithms = {term: math.log(OWN.get(term, 1.0)) for term in counts}
    for character in "怎么感冒":
        logarithms[character] += 0.5
    logarithms["感"] += -0.25 + 1.0
    logarithms["怎么"] += 0.125
    mean = sum(logarithms.values()) / len(logarithms)
    share = 0.2 + 0.3 * (math.log(len(logarithms)) - 3.5)
    for term, count in counts.items():
        value = math.exp(logarithms[term] + share * (logarithms[term] - mean) + 0.8 * math.log(count))
        assert found[bm25.term_id(term)] == pytest.approx(value, rel=1e-5), term


def test_what_is_beside_a_term() -> None:
    ache, glad = contexts("头痛。")["痛"], contexts("痛快")["痛"]
    assert ache[0] == glad[0] and ache[1] != glad[1] and ache[2] != glad[2]
    assert contexts("我头痛")["头痛"] == contexts("他说我头痛，很久了")["头痛"]
    apart, ends = contexts("头 HbA1c 痛"), contexts("痛")["痛"]
    assert apart["痛"] == ends, "a character beside which no other is has the same neighbours everywhere"
    assert apart["hba1c"] == contexts("5mg")["5mg"]
    assert len({key for term in ("头", "头痛", "hba1c") for key in contexts("头痛 HbA1c")[term]}) == 8


@given(st.text() | st.text("头痛怎么办，a1 𠀀〇", max_size=60), st.floats(0, 2), st.floats(-0.5, 0.5))
def test_a_query_has_the_terms_of_plain_bm25(text: str, repetition: float, spread: float) -> None:
    beside = {key: 1.5 - place % 4 for place, key in enumerate(sorted(set(QueryTerms.of("头痛怎么办 a1").contexts)))}
    vector = term_weights(beside, Shape(repetition, spread, 0.25)).query_vector(text)
    assert vector.indices == bm25.query_vector(text).indices
    assert all(math.isfinite(value) and value > 0 for value in vector.values)


def test_weights_are_read_as_they_were_saved(tmp_path: Path) -> None:
    text = "怎么感冒，怎么 HbA1c"
    beside = dict.fromkeys(QueryTerms.of(text).contexts, 0.3)
    saved = term_weights(beside, Shape(0.8, 0.2, 0.3))
    saved.save(tmp_path / "weights.npz")
    read = TermWeights.load(tmp_path / "weights.npz")
    assert values(read, text) == pytest.approx(values(saved, text), rel=2e-3), "half precision"
    read.save(tmp_path / "again.npz")
    assert values(TermWeights.load(tmp_path / "again.npz"), text) == pytest.approx(values(read, text))


def test_a_file_of_weights_of_terms_alone_is_read(tmp_path: Path) -> None:
    terms = np.array(sorted(map(bm25.term_id, ("怎么", "怎"))), np.uint32)
    path = tmp_path / "weights.npz"
    np.savez_compressed(path, analyser=np.array("zh-char-bigram-1"), terms=terms, weights=np.full(2, 0.25, np.float16))
    found = values(TermWeights.load(path), "怎么办，怎么")
    assert {term: found[bm25.term_id(term)] for term in ("怎么", "怎", "么", "办", "么办")} == pytest.approx(
        {"怎么": 0.5, "怎": 0.5, "么": 2.0, "办": 1.0, "么办": 1.0}
    )


@pytest.mark.parametrize("analyser", ["zh-words-2", "english-1"])
def test_terms_of_another_analyser_are_refused(analyser: str, weights: TermWeights, tmp_path: Path) -> None:
    weights.save(tmp_path / "saved.npz")
    saved = dict(np.load(tmp_path / "saved.npz"))
    np.savez_compressed(tmp_path / "weights.npz", **(saved | {"analyser": np.array(analyser)}))
    with pytest.raises(ModelError, match=rf"analyser '{analyser}', expected 'zh-char-bigram-2'"):
        TermWeights.load(tmp_path / "weights.npz")


def test_weights_change_no_terms_of_another_language(weights: TermWeights) -> None:
    english = analyser_for("english")
    assert weights.query_vector("怎么办 running", english) == bm25.query_vector("怎么办 running", english)


@pytest.mark.parametrize("content", [b"", b"not an archive", None])
def test_files_that_hold_no_weights_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights.npz"
    if content is None:
        np.savez(path, other=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ModelError, match="holds no weights of terms"):
        TermWeights.load(path)
