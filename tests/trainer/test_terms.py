"""Weights of query terms: their gradient, what they learn, and when a pair gets none."""

import itertools
import json
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from care_benchmarks.lexical import Bm25Matrix
from care_trainer import terms
from care_trainer.cli import care_train
from care_trainer.config import Data
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import models
from scipy import sparse

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.weights import Shape
from care_qdrant.errors import InputError
from care_qdrant.measures import ndcg_at_10
from care_qdrant.model.card import TERM_WEIGHTS, read_card
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.hub import find_folder
from tests.trainer.tiny_run import write_jsonl

SAMPLE = Path(__file__).parents[2] / "examples" / "sample"
HAN = [chr(code) for code in range(0x4E00, 0x4E00 + 300)]
ASKED = ["请问医生怎么办", "我想知道能不能好", "这是什么原因呢"]
"""Phrases that questions are wrapped in, and answers seldom hold."""


def rows(count: int, *, answered: bool = True, seed: int = 0) -> list[dict[str, str]]:
    """Questions on two characters each, whose answers name them; some other answers say what questions say."""
    random_ = random.Random(seed)
    subjects = [left + right for left in HAN for right in HAN]
    found = []
    for subject in random_.sample(subjects, count):
        filler = "".join(random_.choices(HAN, k=30)) + random_.choice(["", "", "", *ASKED])
        about = subject if answered else ""
        found.append({"query": subject + random_.choice(ASKED), "positive": filler[:15] + about + filler[15:]})
    return found


def learned(tmp_path: Path, found: list[dict[str, str]], seed: int = 0) -> "tuple[terms.TermWeights, terms.TermGate]":
    write_jsonl(tmp_path / "pairs.jsonl", found)
    return terms.learn_terms(Data(files=("pairs.jsonl",)), tmp_path, tmp_path / "rows", seed=seed)


def test_words_that_all_questions_share_count_less_than_their_subjects(tmp_path: Path) -> None:
    weights, gate = learned(tmp_path, rows(1_000))
    assert gate.passed and gate.ndcg_at_10 > gate.ndcg_at_10_bm25
    assert (gate.pairs, gate.held_out) == (900, 100)
    assert str(gate).startswith("BM25 on 100 held-out pairs: nDCG@10 0.")
    vector = weights.query_vector("一丁怎么办")
    value = dict(zip(vector.indices, vector.values, strict=True))
    assert max(value[bm25.term_id(term)] for term in ("怎么", "么办", "怎", "办")) < 0.5
    assert min(value[bm25.term_id(term)] for term in ("一", "丁")) > 0.5
    other = weights.query_vector("七丆怎么办")
    rare = dict(zip(other.indices, other.values, strict=True))[bm25.term_id("七丆")]
    assert value[bm25.term_id("一丁")] == pytest.approx(rare, rel=0.3), "both too rare for a weight of their own"
    again, _ = learned(tmp_path, rows(1_000))
    assert again.query_vector("一丁怎么办") == vector


def test_the_gradient_is_that_of_the_contrastive_loss() -> None:
    random_ = np.random.default_rng(0)
    queries = sparse.random(6, 9, 0.6, "csr", random_state=1)
    documents = sparse.random(6, 9, 0.7, "csr", random_state=2)
    counts = random_.integers(1, 4, queries.nnz).astype(float)
    same = np.zeros((6, 6), bool)
    same[0, 3] = same[3, 0] = True

    def loss(at: np.ndarray) -> float:
        total = []
        for row in range(6):
            mine = slice(queries.indptr[row], queries.indptr[row + 1])
            own, size = at[:-3][mine], len(at[:-3][mine])
            share = at[-2] + at[-1] * (np.log(size) - 3.5)
            values = np.exp(own + share * (own - own.mean()) + at[-3] * np.log(counts[mine]))
            scores = documents.toarray()[:, queries.indices[mine]] @ values
            logits = scores / terms.TEMPERATURE / np.sqrt(size)
            total.append(np.log(np.exp(logits[~same[row]]).sum()) - logits[row])
        return float(np.mean(total))

    at = np.append(random_.standard_normal(queries.nnz) * 0.3, [0.8, 0.2, 0.3])
    found = np.concatenate(terms._gradient(queries, at[:-3], counts, Shape(*at[-3:]), documents, same))
    steps = np.eye(len(at)) * 1e-6
    expected = [(loss(at + step) - loss(at - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_batches_are_of_one_source_and_hold_every_pair() -> None:
    sources = np.repeat([0, 1, 2, 3], [700, 90, 300, 20])
    epochs = terms._batches(np.ones(len(sources)), sources, 256, np.random.default_rng(0))
    for _ in range(2):
        epoch = list(itertools.islice(epochs, 6))
        assert sorted(np.concatenate(epoch)) == list(range(len(sources)))
        mixed = [rows for rows in epoch if len(set(sources[rows])) > 1]
        assert [len(rows) for rows in mixed] == [20 + 300 - 256], "what is left of two sources"
        assert max(map(len, epoch)) == 256


def test_a_word_counts_by_what_is_beside_it(tmp_path: Path) -> None:
    """A character names the subject where it is behind 甲, and says nothing behind 乙."""
    random_ = random.Random(0)
    found = []
    for _ in range(3_000):
        subject, other = random_.sample(HAN, 2)
        filler = random_.choices(HAN, k=20)
        found.append({"query": f"甲{subject}。乙{other}。", "positive": "".join([*filler[:9], subject, *filler[9:]])})
    weights, gate = learned(tmp_path, found)
    assert gate.passed
    vector = weights.query_vector("甲三。乙万。")
    value = dict(zip(vector.indices, vector.values, strict=True))
    assert value[bm25.term_id("三")] > 1.1 * value[bm25.term_id("万")]


def test_held_out_pairs_share_no_text_with_those_trained_on(tmp_path: Path) -> None:
    found = rows(400)
    repeated = [{"query": row["query"], "positive": row["positive"] + "又"} for row in found[:200]]
    _, gate = learned(tmp_path, found + repeated)
    assert gate.held_out == 60 and gate.pairs < 540


def test_pairs_that_teach_nothing_leave_a_pair_as_it_is(tmp_path: Path, pair_copy: Path) -> None:
    write_jsonl(tmp_path / "pairs.jsonl", rows(400, answered=False))
    before = (pair_copy / "care.json").read_bytes()
    result = CliRunner().invoke(care_train, ["terms", str(pair_copy), str(tmp_path / "pairs.jsonl")])
    assert result.exit_code == 0 and "nothing written" in result.output
    assert (pair_copy / "care.json").read_bytes() == before


def test_a_folder_that_is_no_pair_is_refused_before_anything_is_learned(tmp_path: Path) -> None:
    result = CliRunner().invoke(care_train, ["terms", str(tmp_path), str(tmp_path / "none.jsonl")])
    assert "not a CARE folder" in str(result.exception)


def test_a_few_hundred_pairs_do_not_hurt_other_questions(tmp_path: Path) -> None:
    """The titles of the sample as questions, and its natural questions as the others."""
    documents, asked = (
        [json.loads(line) for line in (SAMPLE / name).read_text(encoding="utf-8").splitlines()]
        for name in ("corpus.jsonl", "natural.jsonl")
    )
    weights, _ = learned(tmp_path, [{"query": row["title"], "positive": row["text"]} for row in documents])
    texts = [f"{row['title']}\n{row['text']}" for row in documents]
    average = bm25.average_length(texts)
    matrix = Bm25Matrix([bm25.document_vector(text, average_length=average) for text in texts])

    def found(query_vector: Callable[[str], models.SparseVector]) -> float:
        best = [np.argsort(-matrix.scores(query_vector(row["text"]))[0], kind="stable")[:10] for row in asked]
        ranked = [[documents[place]["id"] for place in places] for places in best]
        return float(np.mean(ndcg_at_10(ranked, [row["documents"] for row in asked])))

    assert found(weights.query_vector) > found(bm25.query_vector) - 0.02


def test_too_few_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="150 pairs; expected at least 200"):
        learned(tmp_path, rows(150))


@pytest.fixture
def pair_copy(tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(find_folder("built-in"), tmp_path / "pair"))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1, 2, 7, 150, 400]), st.sampled_from([1, 3, 40, 400]), st.sampled_from(["问{}", "？{}", "？"]))
def test_pairs_of_any_number_of_texts_are_learned_from_or_refused(asked: int, answers: int, query: str) -> None:
    found = [{"query": query.format(n % asked), "positive": f"答{n % answers}", "prompt": str(n)} for n in range(220)]
    with tempfile.TemporaryDirectory() as root:
        try:
            _, gate = learned(Path(root), found)
        except InputError as error:
            assert "share no text" in str(error)
        else:
            assert gate.pairs >= 100
            assert all(map(math.isfinite, (gate.ndcg_at_10, gate.gain.low)))


def test_the_command_gives_weights_to_a_pair(tmp_path: Path, pair_copy: Path) -> None:
    write_jsonl(tmp_path / "pairs.jsonl", rows(1_000))
    fingerprint, before = read_card(pair_copy).fingerprint, (pair_copy / TERM_WEIGHTS).read_bytes()
    result = CliRunner().invoke(care_train, ["terms", str(pair_copy), str(tmp_path / "pairs.jsonl")])
    assert result.exit_code == 0, result.output
    assert "BM25 on 100 held-out pairs" in result.output and (pair_copy / TERM_WEIGHTS).read_bytes() != before
    card = read_card(pair_copy)
    assert card.fingerprint == fingerprint and card.term_weights is not None
    assert json.loads((pair_copy / "care.json").read_text())["term_weights"]["gate"]["held_out"] == 100
    assert min(CareModel.load(pair_copy).query_terms("怎么办").values) < 0.5
