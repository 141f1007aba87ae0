"""The overview of a collection, whichever tool wrote it."""

from contextlib import closing

from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.overview import overview


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


def test_a_question_is_one_that_a_model_reads() -> None:
    with closing(QdrantClient(":memory:")) as embedded:  # servers take no half characters
        texts = ["\u200b", "……", "🦄", "\ud800", "fe\ud800ver", " - 发烧"]
        held = overview(written(embedded, [{"text": text, "doc_id": f"d{n}"} for n, text in enumerate(texts)]))
    assert {question.text for question in held.questions} == {"- 发烧"}


def test_keys_come_with_their_values_from_any_layout(client: QdrantClient) -> None:
    payloads = [
        {"page_content": f"text {n}", "metadata": {"source": f"{n}.txt", "lang": ["zh", "en"][n % 2], "tags": ["a", n]}}
        for n in range(60)
    ]
    held = overview(written(client, payloads))
    assert held.keys["lang"] == ("en", "zh")
    assert held.keys["source"] == (), "too many to list"
    assert "page_content" not in held.keys
