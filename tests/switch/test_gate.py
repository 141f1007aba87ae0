"""A worse model never passes the comparison, and an equal one is never refused."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient
from qdrant_client.models import StrictModeConfig

from care_qdrant.measures import ndcg_at_10
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.switch import compare
from care_qdrant.switch.compare import MARGIN, Comparison, compare_models, judge, make_questions, read_questions
from tests.standin import StandIn
from tests.switch import models
from tests.switch.models import NAME, TableModel, good
from tests.tiny import write_jsonl

DOCUMENTS = models.texts(1_500)
QUESTIONS = [text.partition("。")[0] for text in DOCUMENTS]
RELEVANT = [[number] for number in range(len(DOCUMENTS))]


def values(model: TableModel) -> list[float]:
    scores = models.brute_force(model, QUESTIONS, DOCUMENTS)
    return ndcg_at_10(np.argsort(-scores, axis=1, kind="stable")[:, :10].tolist(), RELEVANT)


def compared(old: TableModel, new: TableModel) -> Comparison:
    return judge("made of the collection", values(old), values(new), 1.0)


def pairs() -> Iterator[tuple[str, Callable[[], TableModel]]]:
    for seed in range(5):
        for noise in (0.6, 1.0):
            yield f"noise {noise} of {seed}", lambda seed=seed, noise=noise: models.weaker("new", seed, noise)
        yield f"permuted {seed}", lambda seed=seed: models.permuted("new", seed, 0.2)
        yield f"narrow {seed}", lambda seed=seed: models.narrow("new", seed)


WORSE = dict(pairs())


@pytest.mark.parametrize("case", WORSE)
def test_a_worse_model_is_refused(case: str) -> None:
    comparison = compared(good("old", int(case[-1])), WORSE[case]())
    assert comparison.difference.mean < -MARGIN, "the pair is of the order that it is meant to be"
    assert comparison.verdict == "refuse"


@pytest.mark.parametrize("seed", range(10))
def test_the_same_model_in_8_bits_passes(seed: int) -> None:
    assert compared(good("old", seed), models.rounded("new", seed)).verdict == "pass"


@pytest.mark.parametrize("seed", range(10))
def test_an_equal_model_of_another_seed_is_not_refused(seed: int) -> None:
    assert compared(good("old", seed), good("new", seed + 50)).verdict != "refuse"


@pytest.mark.parametrize("seed", range(5))
def test_a_better_model_passes(seed: int) -> None:
    assert compared(models.weaker("old", seed), good("new", seed)).verdict == "pass"


@settings(max_examples=50)
@given(loss=st.floats(-0.1, 0.1), spread=st.floats(0, 0.5), count=st.integers(1, 2_000), seed=st.integers(0, 2**32 - 1))
def test_a_verdict_agrees_with_its_interval(loss: float, spread: float, count: int, seed: int) -> None:
    """Also without any difference, few questions cannot tell, and the named number is more than were asked."""
    before = np.random.default_rng(seed).uniform(0, 1, count)
    after = before - loss + np.random.default_rng(seed + 1).normal(0, spread, count)
    comparison = judge("judged", before.tolist(), after.tolist(), 1.0)
    low, high = comparison.difference.low, comparison.difference.high
    assert (comparison.verdict == "pass") == (low >= -MARGIN)
    assert (comparison.verdict == "refuse") == (high < -MARGIN)
    assert (comparison.needed is None) == (comparison.verdict != "cannot tell")
    assert comparison.needed is None or comparison.needed > count
    if count < 100:
        assert comparison.verdict != "pass" or loss < 0


def test_a_loss_beyond_the_margin_passes_in_one_of_forty_draws() -> None:
    """Also for values such as known items have: 0, 1, and a few between."""
    generator, passed, draws = np.random.default_rng(0), 0, 100
    share = (MARGIN + 0.0005) / 0.4  # of the questions that lose 0.4 on average
    for _ in range(draws):
        before = generator.choice([0.0, 0.5, 1.0], 1_000, p=[0.2, 0.3, 0.5])
        after = np.where(generator.random(1_000) < share, generator.choice([0, 0.5], 1_000), before)
        passed += judge("judged", before.tolist(), after.tolist(), 1.0).verdict == "pass"
    assert passed <= 0.06 * draws


def _by_document(
    generator: np.random.Generator, sizes: Sequence[int], loss: float, drop: float
) -> tuple[list[float], list[float], list[int]]:
    """Return the values of two models for questions: all of a document lose ``drop``, of ``loss / drop`` documents."""
    documents = np.repeat(np.arange(len(sizes)), generator.permutation(sizes))
    has_lost = generator.random(len(sizes)) < loss / drop
    before = generator.choice([0.5, 1.0], len(documents))
    after = before - drop * has_lost[documents] + generator.normal(0, 0.05, len(documents))
    return before.tolist(), after.tolist(), documents.tolist()


FEW, EVEN, SKEWED = [30] * 13, [8] * 400, [max(1, 400 // rank) for rank in range(1, 601)]


@pytest.mark.parametrize("sizes", [FEW, EVEN, SKEWED], ids=["few", "even", "skewed"])
@pytest.mark.parametrize("drop", [0.1, 0.4])
def test_questions_about_one_document_are_not_independent(sizes: list[int], drop: float) -> None:
    """A loss beyond the margin passes in at most 5 % of draws; without documents, in a fifth of those of few."""
    generator, draws, passed = np.random.default_rng(0), 60, 0
    for _ in range(draws):
        before, after, of = _by_document(generator, sizes, MARGIN + 0.0005, drop)
        passed += judge("judged", before, after, 1.0, of).verdict == "pass"
    assert passed <= 0.05 * draws


@pytest.mark.parametrize("sizes", [EVEN, SKEWED], ids=["even", "skewed"])
def test_many_documents_tell_however_many_questions_each_has(sizes: list[int]) -> None:
    generator = np.random.default_rng(0)
    for loss, verdict in ((0.0, "pass"), (0.08, "refuse")):
        for _ in range(20):
            before, after, of = _by_document(generator, sizes, loss, 0.4)
            comparison = judge("judged", before, after, 1.0, of)
            assert (comparison.verdict, comparison.documents) == (verdict, len(sizes))


def test_a_question_counts_with_the_one_that_shares_most_of_its_documents(qdrant: QdrantClient, tmp_path: Path) -> None:
    old = good("old")
    rows = models.fill(qdrant, old, 60)
    asked = [{"text": f"{rows[n]} {n}", "relevant": [f"d{n % 12}", f"d{12 + n}"]} for n in range(48)]
    collection = Collection(qdrant, NAME)
    labels = read_questions(collection, write_jsonl(tmp_path / "questions.jsonl", asked), "old")
    comparison = compare_models(collection, labels, "judged", [("old", old), ("old", old)])
    assert (comparison.questions, comparison.documents) == (48, 12)


def test_the_questions_of_a_collection_are_the_same_each_time(qdrant: QdrantClient) -> None:
    old = good("old")
    models.fill(qdrant, old)
    collection = Collection(qdrant, NAME)
    made = [make_questions(collection, ["old"]) for _ in range(2)]
    assert made[0] == made[1] and len(made[0].questions.texts) == 300
    comparison = compare_models(collection, made[0], "made of the collection", [("old", old), ("old", old)])
    assert (comparison.verdict, comparison.overlap_at_10, comparison.difference.mean) == ("pass", 1.0, 0.0)
    scores = models.brute_force(old, made[0].questions.texts, models.texts(300))
    ranked = [[f"d{place}" for place in row] for row in np.argsort(-scores, axis=1)[:, :10]]
    assert comparison.before.mean == pytest.approx(np.mean(ndcg_at_10(ranked, made[0].questions.relevant)), abs=1e-3)


def test_questions_are_made_of_the_newest_points_too(qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ids count up, the first points may all be of one source."""
    models.fill(qdrant, good("old"), 300)
    monkeypatch.setattr(compare, "QUESTIONS", 60)
    monkeypatch.setattr(compare, "_READ_POINTS", 600)
    relevant = make_questions(Collection(qdrant, NAME), ["old"]).questions.relevant
    halves = [int(ids[0].removeprefix("d")) // 150 for ids in relevant]
    assert len(halves) == 60 and 15 < sum(halves) < 45


def test_models_are_compared_by_as_many_hits_as_a_search_may_ask_for(server: StandIn) -> None:
    old = good("old")
    with open_client(url=server.url) as client:
        models.fill(client, old)
        client.update_collection(NAME, strict_mode_config=StrictModeConfig(enabled=True, max_query_limit=5))
        collection = Collection(client, NAME)
        labels = make_questions(collection, ["old"])
        comparison = compare_models(collection, labels, "made of the collection", [("old", old), ("old", old)])
    assert comparison.before.mean > 0.9 and comparison.overlap_at_10 == 1.0


def test_a_question_counts_once_however_often_it_is_given(qdrant: QdrantClient, tmp_path: Path) -> None:
    rows = models.fill(qdrant, good("old"))
    heads = [row.partition("。")[0] for row in rows[:3]]
    asked = [
        {"text": text, "relevant": [document], "vector": [float(place + 1)] * 96}
        for place, (text, document) in enumerate([*zip(heads, ["d0", "d1", "d2"], strict=True), (heads[1], "d9")] * 50)
    ]
    collection = Collection(qdrant, NAME)
    known = read_questions(collection, write_jsonl(tmp_path / "questions.jsonl", asked), "old").questions
    assert (known.texts, known.relevant) == (heads, [["d0"], ["d1", "d9"], ["d2"]])
    assert known.vectors is not None and known.vectors.shape == (3, 96)
