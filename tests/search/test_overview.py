"""What a collection shows of itself, whoever wrote it, and which score is a good one there."""

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.overview import MIN_QUESTIONS, Question, floor, overview
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Hit


def written(client: QdrantClient, payloads: list[dict[str, object]]) -> Collection:
    client.create_collection("c", vectors_config=models.VectorParams(size=2, distance=models.Distance.COSINE))
    points = [models.PointStruct(id=n, vector=[1.0, n], payload=payload) for n, payload in enumerate(payloads, 1)]
    client.upsert("c", points)
    return Collection(client, "c")


def test_questions_come_first_and_each_once(client: QdrantClient) -> None:
    texts = ["糖尿病的饮食。少吃甜食", "感冒怎么办？多喝水", "感冒怎么办？休息", "", "What helps? Water."]
    held = overview(written(client, [{"text": text, "doc_id": f"d{n}"} for n, text in enumerate(texts)]))
    assert held.points == 5
    assert {question.text for question in held.questions[:2]} == {"感冒怎么办？", "What helps?"}
    assert [question.text for question in held.questions[2:]] == ["糖尿病的饮食"]


def test_keys_come_with_their_values_from_any_layout(client: QdrantClient) -> None:
    payloads = [
        {"page_content": f"text {n}", "metadata": {"source": f"{n}.txt", "lang": ["zh", "en"][n % 2], "tags": ["a", n]}}
        for n in range(60)
    ]
    held = overview(written(client, payloads))
    assert held.keys["lang"] == ("en", "zh")
    assert held.keys["source"] == (), "too many to list"
    assert "page_content" not in held.keys


class _Answers(Retriever):
    """Answers each question with its own document first."""

    def __init__(self, others: dict[str, float]) -> None:
        self._others = others

    def search(self, queries, *_, **__):  # type: ignore[no-untyped-def]
        own = [Hit(f"d-{query}", "1", 9.0, "") for query in queries]
        return [[hit, Hit("other", "2", self._others[query], "")] for query, hit in zip(queries, own, strict=True)]


def test_the_floor_is_what_questions_find_beside_their_own_document() -> None:
    scores = {f"q{n}": float(n) for n in range(21)}
    questions = [Question(text, f"d-{text}") for text in scores]
    assert floor(_Answers(scores), questions) == pytest.approx(4.0)
    assert floor(_Answers(scores), questions[: MIN_QUESTIONS - 1]) is None
