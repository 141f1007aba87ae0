"""Which hits are a good match: the same answer each time, from every program, until the collection has changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import UnexpectedResponse

from care_qdrant.contracts.metadata import GOOD_MATCH
from care_qdrant.encoders.terms import bm25
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.search.good_match import (
    MIN_QUESTIONS,
    GoodMatch,
    fixed_questions,
    judge,
    known_good_match,
    measure_good_match,
)
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, Hit, embedded_text
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from tests.search.conftest import EuclidModel
from tests.tiny import HashModel, medical_texts

DOCUMENTS = [Document(f"d{n}", text, title=f"第 {n} 问怎么办") for n, text in enumerate(medical_texts(600))]


@pytest.fixture
def filled(client: QdrantClient) -> QdrantClient:
    """More documents than a sample holds, so that two random samples would differ."""
    ingest(DOCUMENTS[:400], HashModel(), client, "c", settings=IngestSettings(sparse=True))
    return client


def measured(client: QdrantClient, mode: Any = "auto", **options: Any) -> GoodMatch | None:
    """Measure as a program does that has just been started."""
    retriever = Retriever(client, "c", HashModel(), mode=mode, **options)
    return known_good_match(retriever) or measure_good_match(retriever, fixed_questions(retriever))


def forget(client: QdrantClient) -> None:
    kept = [key for key in client.get_collection("c").config.metadata if key.startswith(GOOD_MATCH.of(""))]
    assert kept
    client.update_collection("c", metadata=dict.fromkeys(kept))


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_a_good_match_score_is_the_same_however_often_it_is_measured(filled: QdrantClient, mode: str) -> None:
    scores = []
    for _ in range(4):
        scores.append(measured(filled, mode))
        forget(filled)
    assert scores[0] is not None
    assert scores[0].score is not None
    assert len(set(scores)) == 1


def test_a_collection_keeps_its_good_match_score_for_every_program_and_mode(filled: QdrantClient) -> None:
    def refuse(texts: list[str]) -> Any:
        raise AssertionError(f"{texts} were encoded again")

    first = {mode: measured(filled, mode) for mode in ("dense", "hybrid")}
    assert first["dense"] != first["hybrid"]
    for mode, good_match in first.items():
        model = HashModel()
        model.encode_query = refuse  # type: ignore[assignment]
        retriever = Retriever(filled, "c", model, mode=mode)  # type: ignore[arg-type]
        assert known_good_match(retriever) == good_match
    assert measured(filled) == first["hybrid"], "auto is hybrid here"


@pytest.mark.parametrize(("documents", "is_kept"), [(440, True), (600, False)])
def test_a_good_match_score_is_measured_again_when_the_collection_has_changed_markedly(
    filled: QdrantClient, documents: int, is_kept: bool
) -> None:
    before = measured(filled)
    ingest(DOCUMENTS[:documents], HashModel(), filled, "c", settings=IngestSettings(sparse=True))
    assert known_good_match(Retriever(filled, "c", HashModel())) == (before if is_kept else None)
    after = measured(filled)
    assert (after == before) is is_kept
    assert known_good_match(Retriever(filled, "c", HashModel())) == after


@pytest.mark.parametrize(("mode", "is_kept"), [("hybrid", False), ("dense", True)])
def test_a_good_match_score_is_measured_again_when_terms_of_queries_count_otherwise(
    filled: QdrantClient, mode: Any, is_kept: bool
) -> None:
    before = measured(filled, mode)
    taught = HashModel()  # as after `care-train terms`: the vectors, and so the fingerprint, stay
    taught.query_terms = bm25.query_vector  # type: ignore[method-assign]
    taught.term_weights_digest = None
    retriever = Retriever(filled, "c", taught, mode=mode)
    assert known_good_match(retriever) == (before if is_kept else None)
    after = measure_good_match(retriever, fixed_questions(retriever))
    assert (after == before) is is_kept
    assert known_good_match(Retriever(filled, "c", taught, mode=mode)) == after


@pytest.mark.parametrize("options", [{"alpha": 0.1}, {"fusion": "rrf"}])
def test_scores_of_another_scale_are_not_compared_with_it(filled: QdrantClient, options: dict[str, Any]) -> None:
    measured(filled)
    assert known_good_match(Retriever(filled, "c", HashModel(), **options)) is None
    own = measured(filled, **options)
    assert own is not None
    assert own != measured(filled), "and its own score is not kept in place of the other"


def test_who_may_only_read_measures_a_good_match_score_all_the_same(
    filled: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise UnexpectedResponse(403, "Forbidden", b"Global manage access is required", None)  # type: ignore[arg-type]

    expected = measured(filled)
    forget(filled)
    monkeypatch.setattr(filled, "update_collection", forbidden)
    assert measured(filled) == expected


def test_no_good_match_score_is_better_than_a_late_one(filled: QdrantClient) -> None:
    retriever = Retriever(filled, "c", HashModel())
    assert measure_good_match(retriever, fixed_questions(retriever), seconds=-1) is None
    assert known_good_match(retriever) is None


def test_detach_takes_the_good_match_scores_of_a_vector_away(filled: QdrantClient) -> None:
    measured(filled)
    before = filled.get_collection("c").config.metadata
    other = HashModel(name="other", salt="x")
    attach_vector(filled, "c", other)
    retriever = Retriever(filled, "c", other)
    measure_good_match(retriever, fixed_questions(retriever))
    assert filled.get_collection("c").config.metadata != before
    detach_vector(filled, "c", "other")
    left = {key: value for key, value in filled.get_collection("c").config.metadata.items() if value is not None}
    assert left == before


class _Answers(Retriever):
    """Answers each question with its own document first."""

    def __init__(self, client: QdrantClient, score: Callable[[str], float]) -> None:
        super().__init__(client, "c", HashModel())
        self._score = score

    def search(self, queries, *_, **__):  # type: ignore[no-untyped-def]
        own = {question.text: question.document_id for question in fixed_questions(self)}
        return [[Hit(own[text], "1", 9.0, ""), Hit("other", "2", self._score(text), "")] for text in queries]


def test_the_good_match_score_is_what_four_in_five_questions_find_beside_their_own_document(
    client: QdrantClient,
) -> None:
    ingest(DOCUMENTS[:21], HashModel(), client, "c")
    asked = [question.text for question in fixed_questions(Retriever(client, "c", HashModel()))]
    retriever = _Answers(client, lambda text: float(asked.index(text)))
    questions = fixed_questions(retriever)
    good_match = measure_good_match(retriever, questions)
    assert good_match is not None
    assert good_match.score == pytest.approx(np.quantile(range(len(asked)), 0.2))
    few = measure_good_match(retriever, questions[: MIN_QUESTIONS - 1])
    assert few is not None
    assert (few.score, known_good_match(Retriever(client, "c", HashModel()))) == (None, few), (
        "too few to tell, and that is kept as well"
    )


@pytest.mark.parametrize(
    ("score", "good_match", "unread", "text", "good"),
    [
        (0.7, GoodMatch(0.6, 9), [], "", True),
        (0.5, GoodMatch(0.6, 9), [], "", False),
        (0.7, GoodMatch(None, 9), [], "", None),
        (0.7, None, [], "", None),
        (0.7, GoodMatch(0.6, 9), ["watermelon"], "西瓜", False),
        (0.7, GoodMatch(0.6, 9), ["ibuprofen"], "布洛芬（Ibuprofen）", True),
        (0.7, None, ["watermelon"], "西瓜", False),
    ],
)
def test_a_hit_is_judged_by_its_score_and_by_what_is_read_of_the_query(
    score: float, good_match: GoodMatch | None, unread: list[str], text: str, good: bool | None
) -> None:
    match = judge([Hit("d", "1", score, text)], good_match, unread)
    assert match.is_good is good
    assert bool(match.unread) is (good is False and bool(unread))
    assert judge([], good_match, []).is_good is False


def test_distances_have_no_good_match_score(client: QdrantClient) -> None:
    """The least distance is the best, so a comparison as of similarities would call the nearest hits bad."""

    ingest(DOCUMENTS[:100], EuclidModel(), client, "c", settings=IngestSettings(sparse=True))
    judged = {}
    for mode in ("dense", "hybrid"):
        retriever = Retriever(client, "c", EuclidModel(), mode=mode)  # type: ignore[arg-type]
        good_match = known_good_match(retriever) or measure_good_match(retriever, fixed_questions(retriever))
        judged[mode] = judge(
            retriever.search([embedded_text(DOCUMENTS[3].title, DOCUMENTS[3].text)], 1)[0], good_match, ()
        ).is_good
    assert judged == {"dense": None, "hybrid": True}
