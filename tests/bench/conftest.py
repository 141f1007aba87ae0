"""Task directories of a few lines, in the shapes that people have."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import write_jsonl

CORPUS = [
    {"id": "d1", "title": "耳鸣的药有哪些", "text": "耳鸣常用的药物有盐酸氟桂利嗪胶囊、尼莫地平等。"},
    {"id": "d2", "text": "一般通过尿检判断肾结石是酸性的还是碱性的。"},
    {"id": "d3", "text": "贫血时要查清原因，再对症治疗。"},
    {"id": "d4", "text": "感冒发热时多饮水，注意休息。"},
    {"id": "d5", "text": "高血压患者要少吃盐，按时服药。"},
]
QUERIES = [
    {"id": "q1", "text": "耳鸣需要吃什么药？"},
    {"id": "q2", "text": "肾结石如何判断是酸性还是碱性？"},
    {"id": "q3", "text": "血压高要注意什么"},
]
QRELS = [
    {"query_id": "q1", "document_id": "d1", "score": 2},
    {"query_id": "q1", "document_id": "d3", "score": 0},
    {"query_id": "q2", "document_id": "d2", "score": 1},
    {"query_id": "q3", "document_id": "d5", "score": 1},
]
RERANK = [
    {
        "query": "耳鸣需要吃什么药？",
        "positive": [CORPUS[0]["text"]],
        "negative": [CORPUS[2]["text"], CORPUS[3]["text"]],
    },
    {"query": "血压高要注意什么", "positive": [CORPUS[4]["text"]], "negative": [CORPUS[0]["text"], CORPUS[1]["text"]]},
]
STS = [
    {"sentence1": "碳酸氢钠片是否会引起头皮痒", "sentence2": "服用小苏打片是否可能导致头皮发痒？", "score": 1},
    {"sentence1": "感冒发烧怎么办", "sentence2": "肾结石怎么办", "score": 0},
    {"sentence1": "孩子发热", "sentence2": "小孩发烧", "score": 1},
    {"sentence1": "耳鸣吃什么药", "sentence2": "贫血吃什么", "score": 0},
]


def write_tasks(directory: Path) -> Path:
    """Write a whole task directory in our own shape."""
    write_jsonl(directory / "retrieval/corpus.jsonl", CORPUS)
    write_jsonl(directory / "retrieval/queries.jsonl", QUERIES)
    write_jsonl(directory / "retrieval/qrels.jsonl", QRELS)
    write_jsonl(directory / "rerank.jsonl", RERANK)
    write_jsonl(directory / "sts.jsonl", STS)
    return directory


@pytest.fixture
def task_directory(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "clinic")


@pytest.fixture
def spoil(task_directory: Path) -> Callable[[str, int, str], Path]:
    """Replace one line (from 1) of one file of the task directory; give the directory."""

    def replace(file: str, line: int, text: str) -> Path:
        path = task_directory / file
        lines = path.read_text(encoding="utf-8").splitlines()
        lines[line - 1 : line] = [text]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return task_directory

    return replace
