"""What may import what, and who may call the database: read off the source, so that no test has to run into it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from qdrant_client import QdrantClient

ROOT = Path(__file__).parents[1]
CALLS = {name for name in vars(QdrantClient) if not name.startswith("_")} - {"close", "init_options", "info"}
DOOR = ROOT / "care_qdrant" / "qdrant"
SHIPPED = [
    path
    for folder in ("care_qdrant", "trainer/care_trainer", "llama_integration/llama_index")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.is_relative_to(DOOR)
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_door_calls_the_client(path: Path) -> None:
    """Elsewhere, a call would have no retry and would not go on with another node of a cluster."""
    assert list(_calls_of_a_client(ast.parse(path.read_text("utf-8")))) == []


def _calls_of_a_client(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS):
            continue
        owner = node.func.value
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if name.lstrip("_") in ("client", "aclient", "qdrant"):
            yield f"line {node.lineno}: {name}.{node.func.attr}"


def test_the_check_finds_a_call() -> None:
    assert list(_calls_of_a_client(ast.parse("self._client.scroll('corpus')"))) == ["line 1: _client.scroll"]
