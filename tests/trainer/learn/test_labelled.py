"""Labelled questions: looked up in the collection, searched in it, measured beside BM25, and never trained on."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from care_trainer.learn.labelled import measure_labelled
from care_trainer.learn.learn import learn
from care_trainer.learn.report import paragraphs, plot, write_report
from care_trainer.learn.weak import Example
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.errors import InputError
from care_qdrant.measures import Estimate, estimate
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.judged import Labelled, find_labels, read_queries
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.vectors.attach import attach_vector
from tests.tiny import write_jsonl
from tests.trainer.learn.collections import WordModel, write_langchain
from tests.trainer.learn.conftest import SETTINGS, TEXTS

QUESTIONS = [text.split("。")[1] for text in TEXTS[:60]]


def expected(client: QdrantClient, mode: Mode, model: CareModel | None) -> list[float]:
    """The three measures by definition, of what the product's own search finds; one relevant document each."""
    answers = Retriever(client, "articles", model, mode=mode, vector_name="" if model else None).search(QUESTIONS, 10)
    found = [[hit.document_id for hit in hits] for hits in answers]
    ranks = [ids.index(f"{n}.txt") + 1 if f"{n}.txt" in ids else 0 for n, ids in enumerate(found)]
    of_rank = (lambda rank: 1 / np.log2(rank + 1), lambda rank: 1.0, lambda rank: 1 / rank)
    return [float(np.mean([score(rank) if rank else 0.0 for rank in ranks])) for score in of_rank]


@pytest.mark.timeout(400)
def test_the_figures_are_those_of_the_products_own_search(tmp_path: Path) -> None:
    client, folder = QdrantClient(":memory:"), tmp_path / "queries"
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    attach_vector(client, "articles", None)
    lines: list[dict[str, object]] = [
        {"text": text, "relevant": [f"{number}.txt", f"gone-{number}"]} for number, text in enumerate(QUESTIONS)
    ]
    file = write_jsonl(tmp_path / "queries.jsonl", [*lines, {"text": "心痛", "relevant": ["gone-0"]}])
    report = learn(client, "articles", folder, settings=SETTINGS, questions=partial(read_queries, file))
    found = report.labelled
    assert report.registered and report.agreement is None
    assert found is not None and found.bm25 is not None and found.hybrid is not None and found.old_model is None
    assert (found.unit, found.questions, found.relevant, found.unknown_ids, found.left_out) == (
        "documents",
        60,
        60,
        60,
        1,
    )
    model = CareModel.load(folder)
    modes: dict[Mode, CareModel | None] = {"dense": model, "sparse": None, "hybrid": model}
    for ranking, (mode, asked) in zip((found.learned, found.bm25, found.hybrid), modes.items(), strict=True):
        means = [ranking.ndcg_at_10.mean, ranking.recall_at_10.mean, ranking.mrr_at_10.mean]
        np.testing.assert_allclose(means, expected(client, mode, asked), atol=1e-4)
    assert found.learned.ndcg_at_10.low < found.learned.ndcg_at_10.mean < found.learned.ndcg_at_10.high

    write_report(folder, replace(report, examples=[Example("心梗的家人", 25)]))
    plot(report, folder / "learn" / "report.png")
    text = (folder / "learn" / "report.md").read_text("utf-8")
    assert f"| BM25 | {found.bm25.ndcg_at_10.mean:.3f} (" in text and "| learned and BM25 |" in text
    assert "60 of the ids are not in the collection" in text
    stored = (folder / "learn" / "report.json").read_text("utf-8")
    assert "- '心梗的家人' (rank 25)" in text and "心梗的家人" not in stored
    assert report.kept is None and "**Warning**" not in text
    for share, is_warned in ((0.8, True), (0.95, False)):
        old = replace(found.learned, ndcg_at_10=Estimate(found.learned.ndcg_at_10.mean / share, 0.0, 1.0))
        beside = replace(report, labelled=replace(found, old_model=old))
        assert beside.kept == pytest.approx(share, abs=1e-3)
        assert ("keeps 80% of the old model's nDCG@10" in "".join(paragraphs(beside)[:2])) == is_warned
    assert json.loads(stored)["labelled"] == asdict(found)
    assert (folder / "learn" / "report.png").stat().st_size > 10_000


@pytest.fixture
def chunked() -> Collection:
    """100 documents of two chunks each: points 2n and 2n + 1 are of document dn."""
    client = QdrantClient(":memory:")
    vectors = WordModel().encode(TEXTS[:200])
    client.create_collection("c", models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE))
    points = [
        models.PointStruct(id=n, vector=vectors[n].tolist(), payload={"text": TEXTS[n], "doc_id": f"d{n // 2}"})
        for n in range(200)
    ]
    client.upsert("c", points)
    return Collection(client, "c")


def looked_up(collection: Collection, relevant: list[list[str]], vectors: np.ndarray | None = None):  # type: ignore[no-untyped-def]
    layout = guess_layout([record.payload or {} for record in collection.sample(10)])
    return find_labels(collection, layout, Labelled(TEXTS[: len(relevant)], relevant, vectors))


def test_documents_of_several_points_are_ranked_once(chunked: Collection) -> None:
    vectors = WordModel().encode(TEXTS[:10])
    labels = looked_up(chunked, [[f"d{n // 2}"] for n in range(10)], vectors)
    found = measure_labelled(chunked, "", labels, vectors, None, None, 0)
    assert labels.unit == "documents" and found.bm25 is None and found.hybrid is None
    assert found.learned.ndcg_at_10 == found.learned.recall_at_10 == found.learned.mrr_at_10 == Estimate(1, 1, 1)
    assert found.old_model == found.learned


def test_ids_of_points_are_told_from_ids_of_documents(chunked: Collection) -> None:
    labels = looked_up(chunked, [["0", "999"], ["7"]])
    assert (labels.unit, labels.unknown_ids, labels.left_out) == ("points", 1, 0)
    # The first question is asked with the vector of its point, the second with that of another one.
    found = measure_labelled(chunked, "", labels, WordModel().encode([TEXTS[0], TEXTS[100]]), None, None, 0)
    assert 0.5 <= found.learned.mrr_at_10.mean < 1 and found.relevant == 2


def test_ids_that_the_collection_does_not_have_are_an_error(chunked: Collection) -> None:
    with pytest.raises(InputError, match=r"of 2 ids .*'a', 'b'.* none is .*for example, point '0' of document 'd0'"):
        looked_up(chunked, [["a"], ["b"]])


def test_an_interval_covers_the_mean_and_narrows_with_more_questions() -> None:
    few, many = estimate([0.0, 1.0] * 10, 0), estimate([0.0, 1.0] * 1_000, 0)
    assert few.low < 0.5 < few.high and many.low < 0.5 < many.high
    assert many.high - many.low < (few.high - few.low) / 5


def test_the_command_names_labels_that_it_cannot_use(tmp_path: Path) -> None:
    with open_client(path=tmp_path / "qdrant") as client:
        write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    file = write_jsonl(tmp_path / "queries.jsonl", [{"text": "心痛", "relevant": ["nothing"]}])
    arguments = ["learn", "articles", "--path", str(tmp_path / "qdrant"), "--output", str(tmp_path / "queries")]
    result = CliRunner().invoke(care, [*arguments, "--queries", str(file)])
    assert result.exit_code != 0 and "of 1 id under 'relevant'" in str(result.output) + str(result.exception)
    assert not (tmp_path / "queries").exists()
