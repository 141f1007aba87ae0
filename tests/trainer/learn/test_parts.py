"""The parts of learning against a few lines of NumPy each."""

from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.learn import table
from care_trainer.learn.earlier import save_seen, unseen_fraction
from care_trainer.learn.quality import fusion_alpha, verdict
from care_trainer.learn.reading import Pairs, Sample, principal_directions, sample_ids
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.split import Split, measure, question_of, ranks
from care_trainer.models.tokens import Parts, TokenLists, tokenize, train_collection_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.layouts import CARE_LAYOUT
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from tests.trainer.learn.collections import WordModel, word_texts

TEXTS = word_texts(200)


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=8), st.data())
def test_token_lists_behave_as_lists(lists: list[list[int]], data: st.DataObject) -> None:
    tokens = TokenLists.of(lists)
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), min_size=1))
    assert as_lists(tokens.take(np.array(rows))) == [lists[row] for row in rows]
    assert as_lists(tokens.joined(tokens)) == lists + lists
    kept = tokens.drop(0.9, np.random.default_rng(0))
    assert [bool(numbers) for numbers in as_lists(kept)] == [bool(numbers) for numbers in lists]


def as_lists(tokens: TokenLists) -> list[list[int]]:
    return [tokens.flat[start:end].tolist() for start, end in zip(tokens.starts[:-1], tokens.starts[1:], strict=True)]


def test_the_loss_is_info_nce_plus_the_squared_distance() -> None:
    generator = np.random.default_rng(0)
    queries, documents, others = (generator.normal(size=(4, 6)) for _ in range(3))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    documents[2] = documents[0]  # no negative of row 0, and the other way round
    others[3] = documents[1]  # no negative of row 1
    logits = queries @ np.concatenate([documents, others]).T / 0.5
    logits[0, 2] = logits[2, 0] = logits[1, 7] = -np.inf
    expected = np.mean(np.log(np.exp(logits).sum(axis=1)) - np.diag(logits))
    expected += ((queries - documents) ** 2).sum(axis=1).mean()
    found, gradient = table.alignment_loss(queries, documents, others, 0.5)
    np.testing.assert_allclose(found, expected)
    asked, *rest = (torch.from_numpy(values) for values in (queries, documents, others))
    candidates = torch.cat(rest)
    mask = torch.from_numpy(np.isinf(logits))
    scores = (asked.requires_grad_() @ candidates.T / 0.5).masked_fill(mask, -torch.inf)
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(4)) + (asked - rest[0]).square().sum(dim=1).mean()
    loss.backward()
    np.testing.assert_allclose(gradient, asked.grad, atol=1e-12)


@pytest.mark.parametrize("softness", [0.2, 1.0, 5.0])
def test_the_loss_of_soft_targets_is_the_cross_entropy_to_the_documents_own_similarities(softness: float) -> None:
    generator = np.random.default_rng(1)
    queries, documents, others = (generator.normal(size=(rows, 6)) for rows in (4, 4, 9))
    asked, wanted, drawn = (torch.from_numpy(values) for values in (queries, documents, others))
    candidates = torch.cat([wanted, drawn])
    targets = (wanted @ candidates.T / (0.5 * softness)).softmax(dim=1)
    scores = asked.requires_grad_() @ candidates.T / 0.5
    expected = torch.nn.functional.cross_entropy(scores, targets) + (asked - wanted).square().sum(dim=1).mean()
    expected.backward()
    loss, gradient = table.alignment_loss(queries, documents, others, 0.5, softness)
    np.testing.assert_allclose(loss, expected.item())
    np.testing.assert_allclose(gradient, asked.grad, atol=1e-12)


def test_rows_are_moved_as_by_sparse_adam() -> None:
    generator = np.random.default_rng(0)
    own = generator.normal(size=(9, 4)).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(own.copy()))
    adam = table.Adam(np.zeros_like(own), np.zeros_like(own))
    optimizer = torch.optim.SparseAdam([theirs], lr=0.1)
    for step in range(20):
        rows = np.flatnonzero(generator.random(9) < 0.5)
        gradient = generator.normal(size=(len(rows), 4)).astype(np.float32)
        adam.step(own, rows, gradient, 0.1 * 0.9**step)
        optimizer.param_groups[0]["lr"] = 0.1 * 0.9**step
        theirs.grad = torch.sparse_coo_tensor(
            torch.from_numpy(rows)[None], torch.from_numpy(gradient), theirs.shape, check_invariants=True
        )
        optimizer.step()
    np.testing.assert_allclose(own, theirs.detach(), atol=1e-5)


def test_a_state_of_training_that_is_cut_off_or_damaged_is_none(tmp_path: Path) -> None:
    rows, resume = np.ones((2, 3), np.float32), table.Resume(tmp_path / "state.npz", "digest")
    state = table.State(rows, table.Adam(rows, rows, 4), table.Fit(rows, 4, 2, 0.5, [{"step": 4, "loss": 1.0}]), 0.5)
    resume.save(state)
    whole, kept = resume.path.read_bytes(), resume.load()
    assert kept is not None and (kept.best, kept.adam.steps, kept.fit.history) == (0.5, 4, state.fit.history)
    for size in range(len(whole)):
        resume.path.write_bytes(whole[:size])
        assert resume.load() is None
        resume.path.write_bytes(whole[:size] + bytes([whole[size] ^ 1 << size % 8]) + whole[size + 1 :])
        damaged = resume.load()  # not None where a zip file holds a thing twice or for nothing
        assert damaged is None or (damaged.best, damaged.fit.table.tolist()) == (0.5, rows.tolist())


def test_a_folded_table_needs_no_parts_and_unfolds_again() -> None:
    tokenizer = train_collection_tokenizer(TEXTS, 150, 64)
    parts, documents = Parts.of(tokenizer), tokenize(tokenizer, TEXTS)
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8)).astype(np.float32)
    folded = table.folded(vectors, parts, np.ones(8, np.float32))
    np.testing.assert_allclose(
        table.encode(folded, documents), table.encode(vectors, parts.of_texts(documents)), atol=1e-5
    )
    np.testing.assert_allclose(parts.fold(parts.unfold(folded)), folded, atol=1e-5)


def test_a_token_that_no_text_has_points_to_the_mean() -> None:
    tokenizer = train_collection_tokenizer(TEXTS, 150, 64)
    mean = np.array([3.0, 4.0], np.float32)
    vectors = np.ones((tokenizer.get_vocab_size(), 2), np.float32)
    vectors[tokenizer.token_to_id("[UNK]")] = 0
    unknown = table.folded(vectors, Parts.of(tokenizer), mean)[tokenizer.token_to_id("[UNK]")]
    np.testing.assert_allclose(unknown / np.linalg.norm(unknown), mean / 5, atol=1e-6)


def test_ranks_count_the_better_candidates() -> None:
    generator = np.random.default_rng(0)
    queries, candidates = generator.normal(size=(300, 5)).astype(np.float32), generator.normal(size=(40, 5))
    answers = generator.integers(40, size=300)
    scores = queries @ candidates.T
    expected = [1 + int((row > row[answer] + 1e-6).sum()) for row, answer in zip(scores, answers, strict=True)]
    found = ranks(queries, candidates, answers)
    assert found.tolist() == expected
    assert measure(found, 40).recall_at_10 == round(np.mean(np.array(expected) <= 10), 4)
    assert measure(np.ones(3, np.int64), 40).percentile == 1.0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_candidates_of_equal_scores_share_the_mean_of_their_ranks(scores: list[int], data: st.DataObject) -> None:
    answer = data.draw(st.integers(0, len(scores) - 1))
    candidates = np.array(scores, dtype=np.float32)[:, None]
    better, equal = (sum(score > scores[answer] for score in scores), scores.count(scores[answer]))
    expected = np.mean([better + 1 + place for place in range(equal)])
    assert ranks(np.ones((1, 1), np.float32), candidates, [answer]).tolist() == [expected]


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_a_question_without_a_usable_vector_is_not_found(value: float) -> None:
    candidates = np.eye(4, dtype=np.float32)
    found = measure(ranks(np.full((2, 4), value, np.float32), candidates, [0, 1]), 4)
    assert (found.recall_at_1, found.recall_at_10, found.mrr, found.percentile) == (0, 0, 0, 0)
    assert verdict(found) is not None


@pytest.mark.parametrize("title", ["-", "……", " ", "😀"])
def test_a_title_without_words_is_no_question(title: str) -> None:
    text = "第一句话说的是发烧。第二句话说的是咳嗽。"
    assert question_of(text, title, np.random.default_rng(0)) in text
    assert question_of(text, "发烧", np.random.default_rng(0)) == "发烧"


LINES = st.sampled_from(
    ["-" * 10, "| --- | --- |", "。。。。。。。。", "****", "Use care attach.", "发烧时多喝水，注意休息。", "x"]
)


@given(
    st.lists(LINES, min_size=1, max_size=9).map("\n".join).filter(lambda text: any(map(str.isalnum, text))), st.data()
)
def test_a_question_has_a_letter_of_its_text(text: str, data: st.DataObject) -> None:
    question = question_of(text, "--", np.random.default_rng(data.draw(st.integers(0, 99))))
    assert question in text and any(map(str.isalnum, question))


def test_documents_without_a_letter_are_not_held_out() -> None:
    texts = [f"text {number}" if number % 4 else "-" * (8 + number) for number in range(300)]
    vectors = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    sample = Sample(300, 300, 0, 0, 0, "text")
    pairs = Pairs(list(range(300)), [""] * 300, texts, vectors, None, CARE_LAYOUT, sample, [])
    split = Split.of(pairs, LearnSettings(held_out=0.5), None)
    assert len(split.held) > 0
    assert all(any(map(str.isalnum, texts[row])) for row in split.held)


def test_the_principal_directions_keep_vectors_of_their_span() -> None:
    generator = np.random.default_rng(0)
    vectors = (generator.normal(size=(50, 4)) @ generator.normal(size=(4, 20))).astype(np.float32)
    basis = principal_directions(vectors, 4)
    np.testing.assert_allclose(basis @ basis.T, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(vectors @ basis.T @ basis, vectors, atol=1e-4)


def test_a_sample_is_random_seeded_and_without_repetition() -> None:
    client = QdrantClient(":memory:")
    client.create_collection("c", models.VectorParams(size=1, distance=models.Distance.DOT))
    client.upsert("c", [models.PointStruct(id=number, vector=[1.0]) for number in range(500)])
    collection = Collection(client, "c")
    first, second = sample_ids(collection, 100, 0), sample_ids(collection, 100, 0)
    assert first == second and len(set(first)) == 100
    assert 150 < np.mean([int(point) for point in first]) < 350
    assert sorted(map(int, sample_ids(collection, 1_000, 0))) == list(range(500))
    assert sample_ids(collection, 100, 1) != first
    client.upsert("c", [models.PointStruct(id=number, vector=[1.0]) for number in range(500, 550)])
    later = sample_ids(collection, 100, 0)
    assert len(set(first) & set(later)) >= 80  # 50 of 550 are new
    assert {int(point) for point in later} - {int(point) for point in first} <= set(range(500, 550))


def test_alpha_grows_as_the_dense_scores_get_narrower() -> None:
    vectors, questions = WordModel().encode(TEXTS), [text[:5] for text in TEXTS]
    wide = fusion_alpha(questions, vectors, TEXTS, vectors)
    narrow = fusion_alpha(questions, vectors * 0.1, TEXTS, vectors)
    assert wide is not None and narrow is not None and 0 < wide < narrow < 1
    assert fusion_alpha(["…"], vectors, TEXTS, vectors) is None


def test_what_an_earlier_run_has_read_is_refused_where_it_is_cut_off(tmp_path: Path) -> None:
    save_seen(tmp_path, range(3))
    file = tmp_path / "learn" / "seen.npy"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"seen\.npy: cannot be read .* learn into a new folder"):
            unseen_fraction(tmp_path, Collection(QdrantClient(":memory:"), "articles"), LearnSettings())
