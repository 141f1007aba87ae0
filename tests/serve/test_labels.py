"""Judgements of people are labelled questions that `care learn` and the benchmark read."""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from care_benchmarks.taskfiles import RetrievalFiles, read_questions
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from care_qdrant.search.judged import read_queries
from care_qdrant.serve.labels import keep_label
from tests.serve.conftest import aligned
from tests.tiny import TEXTS

PRESSES = st.lists(
    st.tuples(
        st.sampled_from(["高血压", "a \u2028 b", '"']), st.sampled_from("xyz"), st.sampled_from([True, False, None])
    ),
    min_size=1,
    max_size=20,
)


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]


@settings(max_examples=50, deadline=None)
@given(presses=PRESSES)
def test_the_last_press_of_a_thumb_counts(presses: list[tuple[str, str, bool | None]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "corpus")
        for text, document, relevant in presses:
            count = keep_label(folder, text, document, is_relevant=relevant)
        said = {(text, document): relevant for text, document, relevant in presses}
        relevant_ids: dict[str, set[str]] = {}
        for (text, document), relevant in said.items():
            if relevant:
                relevant_ids.setdefault(text, set()).add(document)
        questions = lines(folder / "queries.jsonl")
        assert {row["text"]: set(row["relevant"]) for row in questions} == relevant_ids
        assert count == len(questions) == len(relevant_ids)
        texts = {row["id"]: row["text"] for row in questions}
        judged = {(texts[row["query_id"]], row["document_id"]): row["score"] for row in lines(folder / "qrels.jsonl")}
        known = {pair: int(each) for pair, each in said.items() if each is not None and pair[0] in relevant_ids}
        assert judged == known


async def test_labels_are_read_by_learn_and_by_the_benchmark(
    make_service, connect, filled: QdrantClient, tmp_path: Path
) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled, record=tmp_path / "labels"))
    for document, relevant in (("d0", True), ("d1", False), ("d2", True), ("d2", None)):
        body = {"query": "发烧怎么办", "document_id": document, "relevant": relevant}
        assert (await http.post("/labels", json=body)).json() == {"questions": 1}
    folder = tmp_path / "labels" / "corpus"
    labelled = read_queries(folder / "queries.jsonl", dim=32).labelled
    assert labelled is not None
    assert (labelled.texts, labelled.relevant) == (["发烧怎么办"], [["d0"]])
    rows = (json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(TEXTS))
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    files = RetrievalFiles(*(folder / f"{name}.jsonl" for name in ("corpus", "queries", "qrels")))
    queries, qrels = read_questions(files)
    assert list(queries.values()) == ["发烧怎么办"]
    assert list(qrels.values()) == [{"d0": 1, "d1": 0}]


@pytest.mark.parametrize("keeps", [True, False])
async def test_nothing_is_written_of_what_is_not_there(
    make_service, connect, filled: QdrantClient, tmp_path: Path, keeps: bool
) -> None:
    folder = tmp_path / "labels"
    http = connect(make_service(aligned(), collections=("corpus",), over=filled, record=folder if keeps else None))
    body = {"query": "发烧", "document_id": "nowhere" if keeps else "d0", "relevant": True}
    answer = await http.post("/labels", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_document" if keeps else "no_labels")
    assert (await http.get("/collections")).json()["labels"] is keeps
    assert not folder.exists()


@pytest.mark.parametrize(
    "cut", [b'{"text": "a", "docu', b"\xff", b"[]", b"[" * 5_000, b'{"text": 1, "document_id": 2, "relevant": []}']
)
def test_a_line_that_was_cut_costs_no_other_judgement(tmp_path: Path, cut: bytes) -> None:
    keep_label(tmp_path, "a", "x", is_relevant=True)
    with (tmp_path / "judgements.jsonl").open("ab") as log:
        log.write(cut)
    assert keep_label(tmp_path, "b", "y", is_relevant=True) == 2
    assert keep_label(tmp_path, "c", "z", is_relevant=True) == 3
    assert [row["text"] for row in lines(tmp_path / "queries.jsonl")] == ["a", "b", "c"]


def test_judgements_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """A worker keeps them in threads, which share the locks of a process."""
    with ThreadPoolExecutor(8) as threads:
        kept = partial(keep_label, tmp_path, document_id="x", is_relevant=True)
        counts = list(threads.map(kept, map(str, range(100))))
    assert sorted(counts) == list(range(1, 101))
    assert len(lines(tmp_path / "queries.jsonl")) == len(lines(tmp_path / "judgements.jsonl")) == 100


async def test_a_search_says_how_its_hits_were_judged(
    make_service, connect, filled: QdrantClient, tmp_path: Path
) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled, record=tmp_path))

    async def judged() -> dict[str, bool | None]:
        hits = (await http.post("/search", json={"query": TEXTS[3]})).json()["hits"]
        return {hit["document_id"]: hit["relevant"] for hit in hits if hit["relevant"] is not None}

    assert await judged() == {}
    for document, relevant in (("d3", True), ("d1", False), ("d2", True), ("d2", None)):
        body = {"query": TEXTS[3], "document_id": document, "relevant": relevant}
        assert (await http.post("/labels", json=body)).status_code == 200
    assert await judged() == {"d3": True, "d1": False}


async def test_a_folder_that_cannot_be_written_is_told_and_keeps_no_search_from_its_hits(
    make_service, connect, filled: QdrantClient, tmp_path: Path
) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled, record=tmp_path))
    (tmp_path / "corpus" / "judgements.jsonl").mkdir(parents=True)
    answer = await http.post("/labels", json={"query": TEXTS[3], "document_id": "d3", "relevant": True})
    assert (answer.status_code, answer.json()["code"]) == (503, "labels_not_written")
    assert (await http.post("/search", json={"query": TEXTS[3]})).json()["hits"]
