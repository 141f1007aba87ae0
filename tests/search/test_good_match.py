"""Which hits are a good match: the same answer each time, from every program, until the collection has changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import UnexpectedResponse

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.schema import FLOOR_PREFIX
from care_qdrant.search.good_match import MIN_QUESTIONS, Floor, find_floor, fixed_questions, judge, known_floor
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, Hit
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from tests.tiny import HashModel, medical_texts

DOCUMENTS = [Document(f"d{n}", text, title=f"第 {n} 问怎么办") for n, text in enumerate(medical_texts(600))]


@pytest.fixture
def filled(client: QdrantClient) -> QdrantClient:
    """More documents than a sample holds, so that two random samples would differ."""
    ingest(DOCUMENTS[:400], HashModel(), client, "c", settings=IngestSettings(sparse=True))
    return client


def measured(client: QdrantClient, mode: Any = "auto", **options: Any) -> Floor | None:
    """Measure as a program does that has just been started."""
    retriever = Retriever(client, "c", HashModel(), mode=mode, **options)
    return known_floor(retriever) or find_floor(retriever, fixed_questions(retriever))


def forget(client: QdrantClient) -> None:
    kept = [key for key in client.get_collection("c").config.metadata if key.startswith(FLOOR_PREFIX)]
    assert kept
    client.update_collection("c", metadata=dict.fromkeys(kept))


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_a_floor_is_the_same_however_often_it_is_measured(filled: QdrantClient, mode: str) -> None:
    floors = []
    for _ in range(4):
        floors.append(measured(filled, mode))
        forget(filled)
    assert floors[0] is not None
    assert floors[0].score is not None
    assert len(set(floors)) == 1


def test_a_collection_keeps_its_floor_for_every_program_and_mode(filled: QdrantClient) -> None:
    def refuse(texts: list[str]) -> Any:
        raise AssertionError(f"{texts} were encoded again")

    first = {mode: measured(filled, mode) for mode in ("dense", "hybrid")}
    assert first["dense"] != first["hybrid"]
    for mode, floor in first.items():
        model = HashModel()
        model.encode_query = refuse  # type: ignore[assignment]
        retriever = Retriever(filled, "c", model, mode=mode)  # type: ignore[arg-type]
        assert known_floor(retriever) == floor
    assert measured(filled) == first["hybrid"], "auto is hybrid here"


@pytest.mark.parametrize(("documents", "is_kept"), [(440, True), (600, False)])
def test_a_floor_is_measured_again_when_the_collection_has_changed_markedly(
    filled: QdrantClient, documents: int, is_kept: bool
) -> None:
    before = measured(filled)
    ingest(DOCUMENTS[:documents], HashModel(), filled, "c", settings=IngestSettings(sparse=True))
    assert known_floor(Retriever(filled, "c", HashModel())) == (before if is_kept else None)
    after = measured(filled)
    assert (after == before) is is_kept
    assert known_floor(Retriever(filled, "c", HashModel())) == after


@pytest.mark.parametrize("options", [{"alpha": 0.1}, {"fusion": "rrf"}])
def test_scores_of_another_scale_are_not_compared_with_it(filled: QdrantClient, options: dict[str, Any]) -> None:
    measured(filled)
    assert known_floor(Retriever(filled, "c", HashModel(), **options)) is None
    own = measured(filled, **options)
    assert own is not None
    assert own != measured(filled), "and its own floor is not kept in place of the other"


def test_who_may_only_read_measures_a_floor_all_the_same(filled: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise UnexpectedResponse(403, "Forbidden", b"Global manage access is required", None)  # type: ignore[arg-type]

    expected = measured(filled)
    forget(filled)
    monkeypatch.setattr(filled, "update_collection", forbidden)
    assert measured(filled) == expected


def test_no_floor_is_better_than_a_late_one(filled: QdrantClient) -> None:
    retriever = Retriever(filled, "c", HashModel())
    assert find_floor(retriever, fixed_questions(retriever), seconds=-1) is None
    assert known_floor(retriever) is None


def test_detach_takes_the_floors_of_a_vector_away(filled: QdrantClient) -> None:
    measured(filled)
    before = filled.get_collection("c").config.metadata
    other = HashModel(name="other", salt="x")
    attach_vector(filled, "c", other)
    retriever = Retriever(filled, "c", other)
    find_floor(retriever, fixed_questions(retriever))
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


def test_the_floor_is_what_four_in_five_questions_find_beside_their_own_document(client: QdrantClient) -> None:
    ingest(DOCUMENTS[:21], HashModel(), client, "c")
    asked = [question.text for question in fixed_questions(Retriever(client, "c", HashModel()))]
    retriever = _Answers(client, lambda text: float(asked.index(text)))
    questions = fixed_questions(retriever)
    floor = find_floor(retriever, questions)
    assert floor is not None
    assert floor.score == pytest.approx(np.quantile(range(len(asked)), 0.2))
    few = find_floor(retriever, questions[: MIN_QUESTIONS - 1])
    assert few is not None
    assert (few.score, known_floor(Retriever(client, "c", HashModel()))) == (None, few), (
        "too few to tell, and that is kept as well"
    )


@pytest.mark.parametrize(
    ("score", "floor", "unread", "text", "good"),
    [
        (0.7, Floor(0.6, 9), [], "", True),
        (0.5, Floor(0.6, 9), [], "", False),
        (0.7, Floor(None, 9), [], "", None),
        (0.7, None, [], "", None),
        (0.7, Floor(0.6, 9), ["watermelon"], "西瓜", False),
        (0.7, Floor(0.6, 9), ["ibuprofen"], "布洛芬（Ibuprofen）", True),
        (0.7, None, ["watermelon"], "西瓜", False),
    ],
)
def test_a_hit_is_judged_by_its_score_and_by_what_is_read_of_the_query(
    score: float, floor: Floor | None, unread: list[str], text: str, good: bool | None
) -> None:
    match = judge([Hit("d", "1", score, text)], floor, unread)
    assert match.is_good is good
    assert bool(match.unread) is (good is False and bool(unread))
    assert judge([], floor, []).is_good is False
