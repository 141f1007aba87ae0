"""The demo, which a newcomer sees first: its answers are right, and its page opens."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from qdrant_client import QdrantClient

from care_qdrant import CareModel, IngestSettings, Retriever, ingest
from care_qdrant.cli.demo import EXAMPLES
from care_qdrant.search.good_match import fixed_questions, judge, measure_good_match
from care_qdrant.serve.supervisor import free_port
from tests.forks import FORKS

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "examples" / "sample"
QUESTIONS = re.findall(r'care search "([^"]+)"', (ROOT / "Makefile").read_text(encoding="utf-8"))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLE / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as `make demo` ingests it."""
    folder = tmp_path_factory.mktemp("demo")
    client = QdrantClient(path=str(folder / "qdrant"))
    ingest(SAMPLE / "corpus.jsonl", CareModel.load(), client, "sample", settings=IngestSettings(sparse=True))
    client.close()
    return folder


def test_the_demo_asks_the_first_natural_question_of_two_departments_and_of_the_english_documents() -> None:
    """They are not chosen by what is found."""
    departments = list(dict.fromkeys(row["metadata"]["department"] for row in rows("corpus.jsonl")))
    departments = [*departments[:2], next(name for name in departments if name.isascii())]
    of = {row["id"]: row["metadata"]["department"] for row in rows("corpus.jsonl")}
    asked: dict[str, list[str]] = {}
    for row in rows("natural.jsonl"):
        asked.setdefault(of[row["documents"][0]], []).append(row["text"])
    assert [asked[department][0] for department in departments] == QUESTIONS


def test_natural_questions_find_the_right_document_among_the_first_three(folder: Path) -> None:
    questions = rows("natural.jsonl")
    client = QdrantClient(path=str(folder / "qdrant"))
    found = Retriever(client, "sample", CareModel.load()).search([row["text"] for row in questions], top_k=3)
    client.close()
    right = {
        row["text"]
        for row, hits in zip(questions, found, strict=True)
        if {hit.document_id for hit in hits} & set(row["documents"])
    }
    assert len(questions) >= 150 and {row["asker"] for row in questions} == {
        "patient",
        "family",
        "doctor",
        "search_box",
    }
    assert all(4 <= len(row["text"]) <= (80 if row["text"].isascii() else 40) for row in questions)
    assert len(right) >= 0.9 * len(questions) and set(QUESTIONS) <= right


def test_the_first_example_shows_hybrid_search_at_its_best_by_the_rule(folder: Path) -> None:
    """A good match, the best document first, more relevant ones than other columns: the first judged question such."""
    client, model = QdrantClient(path=str(folder / "qdrant")), CareModel.load()
    judged: dict[str, dict[str, int]] = {}
    for row in rows("qrels.jsonl"):
        judged.setdefault(row["query_id"], {})[row["document_id"]] = int(row["score"])
    questions = {row["text"]: judged[row["id"]] for row in rows("queries.jsonl")}
    found = {
        mode: Retriever(client, "sample", model, mode=mode).search(list(questions), top_k=3)
        for mode in ("dense", "sparse", "hybrid")
    }
    hybrid = Retriever(client, "sample", model, mode="hybrid")
    good_match = measure_good_match(hybrid, fixed_questions(hybrid))
    client.close()
    shows = []
    for number, (question, grades) in enumerate(questions.items()):
        hits = found["hybrid"][number]
        relevant = {
            mode: sum(grades.get(hit.document_id, 0) > 0 for hit in each[number]) for mode, each in found.items()
        }
        is_best_first = grades.get(hits[0].document_id, 0) == max(grades.values())
        is_ahead = relevant["hybrid"] > max(relevant["dense"], relevant["sparse"])
        if judge(hits, good_match, model.unread(question)).is_good and is_best_first and is_ahead:
            shows.append(question)
    assert shows[0] == next(iter(EXAMPLES))


def test_a_person_is_told_when_perhaps_nothing_answers(folder: Path) -> None:
    """The nearest text is always found; a program that reads JSON judges by itself."""

    def said(question: str, *options: str) -> str:
        command = (
            f"import sys; from care_qdrant.cli import main; sys.argv[1:] = {['search', question, *options]!r}; main()"
        )
        own, theirs = pty.openpty()
        done = subprocess.run(
            [FORKS.python, "-c", command], cwd=folder, stdout=theirs, stderr=subprocess.PIPE, text=True
        )
        os.close(theirs)
        os.close(own)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "No good match (best 0." in said("今年世界杯谁赢了")
    assert said(QUESTIONS[0]) == said("今年世界杯谁赢了", "--json") == said("今年世界杯", "--mode", "sparse") == ""


def test_care_demo_opens_the_page_on_the_sample(tmp_path: Path) -> None:
    code = "from care_qdrant.cli import main; main()"
    command, environment = [sys.executable, "-c", code, "demo"], {**os.environ, "BROWSER": "true"}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stderr is not None
        try:
            [address] = next(found for line in demo.stderr if (found := re.findall(r"http://[\d.:]+", line)))
            asked = httpx.post(f"{address}/search", json={"query": "心梗发作的时候胸口疼是什么样的"}, timeout=30).json()
            assert "<title>care search</title>" in httpx.get(address).text
        finally:
            demo.terminate()
    assert demo.returncode == 0
    assert asked["hits"][0]["document_id"].startswith("cardio-")
    assert (tmp_path / "care-demo").is_dir()


def test_a_port_that_is_taken_is_left_to_its_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert free_port(number) == 0
    assert free_port(number) == number


def test_searches_come_one_a_line_from_a_pipe(folder: Path) -> None:
    done = subprocess.run(
        [str(FORKS.commands / "care"), "search", "--json", "--top-k", "1", "--collection", "sample"],
        cwd=folder,
        input="高血压\n糖尿病\n",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["query"] for line in done.stdout.splitlines()] == ["高血压", "糖尿病"]
