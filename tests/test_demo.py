"""What a newcomer sees first: the demo's answers are right, and the README's code ends without a word on stderr."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from qdrant_client import QdrantClient

from care_qdrant import CareModel, IngestSettings, Retriever, ingest

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


def test_the_readme_s_code_runs_and_leaves_stderr_empty(folder: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"0\.\d{3} cardio-0", done.stdout)
