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


FLOORS: tuple[set[str], ...] = (
    {"types", "errors", "version", "progress"},
    {"encoders"},
    {"corpus", "qdrant"},
    {"model", "search"},
    {"index", "integrations"},
    {"bulk", "serve", "console"},
    {"cli"},
)
"""Packages of the core, the lowest floor first: each imports what is below it, and nothing beside it."""


def test_imports_of_the_core_point_down() -> None:
    core = ROOT / "care_qdrant"
    floor_of = {package: number for number, floor in enumerate(FLOORS) for package in floor}
    there = {path.stem for path in core.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__"} == floor_of.keys()
    upward = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in sorted(core.rglob("*.py"))
        if (own := path.relative_to(core).parts[0].removesuffix(".py")) != "__init__"
        for imported in _imports_of_the_core(ast.parse(path.read_text("utf-8")))
        if imported != own and floor_of[imported] >= max(floor_of[own], 1)
    ]
    assert upward == []


def _imports_of_the_core(tree: ast.AST) -> Iterator[str]:
    """Return the packages of the core that a module imports, those for annotations alone left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("care_qdrant."):
            yield (node.module or "").split(".")[1]
        yield from _imports_of_the_core(node)
