"""What a newcomer sees first: the demo's answers are right, and its page opens."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from qdrant_client import QdrantClient

from care_qdrant import CareModel, IngestSettings, Retriever, ingest
from care_qdrant.serve.supervisor import free_port

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "examples" / "sample"
QUESTIONS = re.findall(r'care search "([^"]+)"', (ROOT / "Makefile").read_text(encoding="utf-8"))


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SAMPLE / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as `make demo` ingests it."""
    folder = tmp_path_factory.mktemp("demo")
    client = QdrantClient(path=str(folder / "qdrant"))
    ingest(SAMPLE / "corpus.jsonl", CareModel.load(), client, "sample", settings=IngestSettings(sparse=True))
    client.close()
    return folder


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_demo_shows_the_right_document_among_the_first_three(question: str, folder: Path) -> None:
    [query] = [row["id"] for row in rows("queries.jsonl") if row["text"] == question]
    grades = {row["document_id"]: int(row["score"]) for row in rows("qrels.jsonl") if row["query_id"] == query}
    best = {document for document, grade in grades.items() if grade == max(grades.values()) > 0}
    client = QdrantClient(path=str(folder / "qdrant"))
    [hits] = Retriever(client, "sample", CareModel.load()).search([question], top_k=3)
    client.close()
    assert best & {hit.document_id for hit in hits}


def test_a_person_is_told_when_perhaps_nothing_answers(folder: Path) -> None:
    """The nearest text is always found; a program that reads JSON judges by itself."""

    def said(question: str, *options: str) -> str:
        command = (
            f"import sys; from care_qdrant.cli import main; sys.argv[1:] = {['search', question, *options]!r}; main()"
        )
        own, theirs = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-c", command], cwd=folder, stdout=theirs, stderr=subprocess.PIPE, text=True
        )
        os.close(theirs)
        os.close(own)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "perhaps nothing here answers this" in said("今年世界杯谁赢了")
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
    code = "from care_qdrant.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "search", "--json", "--top-k", "1", "--collection", "sample"],
        cwd=folder,
        input="高血压\n糖尿病\n",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r'"query": "(.*)"', done.stdout) == ["高血压", "糖尿病"]
