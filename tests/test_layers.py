"""Rules for imports and for calls to the database, read off the source."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from qdrant_client import QdrantClient

ROOT = Path(__file__).parents[1]
TOPS = ("trainer/care_trainer", "llama_integration/llama_index", "benchmarks/care_benchmarks", "benchmarks/care_data")
PUBLIC_MODULES = {"care_qdrant.errors", "care_qdrant.encoders.terms.bm25", "care_qdrant.encoders.terms.sparse"}
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


HELD_BY_A_COLLECTION = {"client", "policy", "retries", "shard_key", "limits"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_collection_holds_is_not_passed_beside_it(path: Path) -> None:
    """A function takes a `Collection`; only classes that live on a server's side open one of a client and a name."""
    passed = [
        f"line {node.lineno}: {node.name}({', '.join(sorted(names))})"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
        if len(names := {each.arg for each in (*node.args.args, *node.args.kwonlyargs)} & HELD_BY_A_COLLECTION) > 1
    ]
    assert passed == []


UNTYPED = [
    path
    for folder in ("tests", "benchmarks/perf", "benchmarks/experiments", "examples", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
"""Sources that mypy does not read."""
ROOTS = ("", "trainer", "benchmarks")


def test_names_that_untyped_code_imports_are_there() -> None:
    """An import inside a function is otherwise not seen to be wrong before somebody starts that trial."""
    missing = []
    for path in UNTYPED:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                module = _absolute(path, node)
                names = _names_of(module)
                missing += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: {module}.{each.name}"
                    for each in node.names
                    if names is not None and each.name not in names
                ]
    assert missing == []


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    package = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
    return ".".join([*package, *filter(None, [node.module])])


@cache
def _names_of(module: str) -> set[str] | None:
    """Return the names that a module of this repository has, its submodules included; None for others' modules."""
    for root in ROOTS:
        place = ROOT / root / Path(*module.split("."))
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if source.is_file():
            tree = ast.parse(source.read_text("utf-8"))
            names = {each.stem for each in place.iterdir()} if place.is_dir() else set[str]()
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    names.add(node.name)
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    names |= {(each.asname or each.name).split(".")[0] for each in node.names}
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "__getattr__" in names:
                    names.add(node.value)
            return names
    return set() if module.startswith(("tests.", "care_", "benchmarks.")) else None


PURE = {"collections", "contextlib", "dataclasses", "hashlib", "itertools", "json", "re", "typing", "uuid"} | {
    "numpy",
    "pydantic",
    "pydantic_core",
    "care_qdrant",
}
"""Modules that contracts may import: none that reads, waits or calls. Of qdrant-client they use the `models` alone."""


@pytest.mark.parametrize("path", sorted((ROOT / "care_qdrant/contracts").glob("*.py")), ids=lambda path: path.stem)
def test_contracts_call_nothing(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {each.name.split(".")[0] for each in node.names}
        if isinstance(node, ast.ImportFrom) and node.module == "qdrant_client":
            imported |= {f"qdrant_client.{each.name}" for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= PURE | {"qdrant_client.models"}


def test_the_packages_above_the_core_import_what_the_page_lists() -> None:
    """A module that is listed and not imported is no longer part of the contract."""
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    part = page.partition("## What the packages above the core import")[2].partition("\n## ")[0]
    listed = {
        name for line in re.findall(r"^\| .+ \| (.+) \|$", part, re.MULTILINE) for name in re.findall(r"`(.+?)`", line)
    }
    imported = {
        name.removeprefix("care_qdrant.")
        for top in TOPS
        for path in (ROOT / top).rglob("*.py")
        for name in _core_modules(ast.parse(path.read_text("utf-8")))
    }
    assert {"console" if name.startswith("console.") else name for name in imported} == listed


def test_examples_import_public_names() -> None:
    programs = [path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")]
    for path in (ROOT / "examples").glob("*.ipynb"):
        cells = [cell["source"] for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        programs += ["".join(line for line in source if not line.startswith("%")) for source in cells]
    assert {name for program in programs for name in _core_modules(ast.parse(program))} == set()


def _core_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the core that a file imports from, those of the public API apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("care_qdrant."):
            assert node.module is not None
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            is_package = (ROOT / node.module.replace(".", "/")).is_dir()
            for module in modules if is_package else [node.module]:
                is_module = (ROOT / f"{module.replace('.', '/')}.py").exists()
                name = module if is_module else node.module
                if name not in PUBLIC_MODULES:
                    yield name


def test_one_module_imports_the_http_client() -> None:
    importing = {
        str(path.relative_to(ROOT))
        for folder in (*TOPS, "care_qdrant")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*(import|from) httpx", path.read_text("utf-8"), re.MULTILINE)
    }
    assert importing == {"care_qdrant/http_client.py"}


LAYERS: tuple[set[str], ...] = (
    {"types", "errors", "version", "http_client", "progress", "measures", "forking", "destinations", "patience"},
    {"encoders"},
    {"contracts"},
    {"corpus", "qdrant"},
    {"model", "search"},
    {"ingestion", "integrations"},
    {"vectors"},
    {"switch", "versions"},
    {"bulk", "serve", "console"},
    {"cli"},
    {"__main__"},
)
"""Packages of the core, the lowest layer first: each imports what is below it, and nothing beside it."""
TRAINER_LAYERS: tuple[set[str], ...] = (
    {"config", "disk", "distributed"},
    {"data"},
    {"models", "evaluation", "needs"},
    {"losses"},
    {"learn"},
    {"training", "terms"},
    {"stages"},
    {"recipe"},
    {"export"},
    {"rehearse"},
    {"start"},
    {"cli"},
)


@pytest.mark.parametrize(
    ("package", "layers", "free"),
    [(ROOT / "care_qdrant", LAYERS, 1), (ROOT / "trainer/care_trainer", TRAINER_LAYERS, 0)],
    ids=["core", "trainer"],
)
def test_imports_point_down(package: Path, layers: tuple[set[str], ...], free: int) -> None:
    """Modules of the first ``free`` layers may import each other."""
    layer_of = {name: number for number, layer in enumerate(layers) for name in layer}
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__"} == layer_of.keys()
    upward = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in sorted(package.rglob("*.py"))
        if (own := path.relative_to(package).parts[0].removesuffix(".py")) != "__init__"
        for imported in _imports_of(package.name, ast.parse(path.read_text("utf-8")))
        if imported != own and layer_of.get(imported, -1) >= max(layer_of[own], free)
    ]
    assert upward == []


@pytest.mark.parametrize("package", [ROOT / "care_qdrant", ROOT / "trainer/care_trainer"], ids=["core", "trainer"])
def test_no_module_imports_one_that_imports_it(package: Path) -> None:
    """Imports inside functions and for annotations alone count: they may hide a circle, and do not end it."""
    paths = {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in package.rglob("*.py")}
    imports = {
        name: {
            module
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            for module in (f"{node.module}.{alias.name}", node.module or "")
            if module in paths
        }
        for name, path in paths.items()
    }
    TopologicalSorter(imports).prepare()  # raises an error that names the circle


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module without the imports for annotations alone."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from _executed(node)


def _imports_of(package: str, tree: ast.AST) -> Iterator[str]:
    """Return the parts of a package that a module imports, those for annotations alone left out."""
    for node in _executed(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            yield (node.module or "").split(".")[1]
        if isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias.name for alias in node.names)
