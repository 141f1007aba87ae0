"""The names that users import: there, meant as they are, and enough for all that is built on the core."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import care_qdrant

ROOT = Path(__file__).parent.parent
ON_TOP_OF_THE_CORE = ("trainer/care_trainer", "benchmarks/care_benchmarks", "benchmarks/care_data", "examples")


SHARED = {"POLICY", "TermWeights", "TorchEncoder", "Job", "read_part", "run_ahead", "usable_cores"} | {
    "LEAST_HALF_PRECISION",
    "COMPLETE",
    "NO_NEIGHBOUR",
    "QueryTerms",
    "Shape",
    "Table",
    "add_term_weights",
    "check_adapter_vectors",
    "copy_term_weights",
    "counted",
    "cosines",
    "duration",
    "embed",
    "embeddings_client",
    "wide_encoding",
    "keep_check_vectors",
    "ndcg_at_10",
    "painted_bar",
    "points_bar",
    "plain_vectors",
    "read_card",
    "recall_at_10",
    "require_destination",
    "require_writable",
}
"""Names that the trainer and care-data share with the core, and nobody else should build on."""


def test_every_public_name_is_there_and_no_module_hides_it() -> None:
    # A submodule of the same name would replace the function as soon as anybody imported it.
    code = (
        "import pkgutil, importlib, types, care_qdrant; "
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(care_qdrant.__path__, 'care_qdrant.')]; "
        "names = [n for n in care_qdrant.__all__ if isinstance(getattr(care_qdrant, n), types.ModuleType)]; "
        "assert not names, names"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_importing_the_package_and_a_name_of_the_query_side_loads_no_torch() -> None:
    code = "import sys; from care_qdrant import CareModel, Retriever, open_client; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_a_file_or_folder_may_be_given_as_a_text(tmp_path: Path) -> None:
    taken = list(_signatures())
    assert not [name for name, kind in taken if "Path" in kind and "str" not in kind]
    assert ("open_client", "str | pathlib.Path | None") in taken
    with care_qdrant.open_client(path=str(tmp_path / "database")) as client:
        assert not client.get_collections().collections


def _signatures() -> Iterator[tuple[str, str]]:
    """Names of the public functions, classes and methods, with the type of each parameter."""
    for name in care_qdrant.__all__:
        public = getattr(care_qdrant, name)
        is_open = inspect.isclass(public) and not issubclass(public, Exception)
        methods = [name for name in dir(public) if not name.startswith("_")] if is_open else []
        for called in [public, *(getattr(public, method) for method in methods)]:
            if inspect.isroutine(called) or (inspect.isclass(called) and not issubclass(called, Exception)):
                for parameter in inspect.signature(called).parameters.values():
                    yield name, str(parameter.annotation)


def _imported_names() -> Iterator[tuple[str, str]]:
    """Names that other packages and the examples import from modules of the core, with the file."""
    for folder in ON_TOP_OF_THE_CORE:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                is_core = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "care_qdrant"
                if is_core and not node.module.startswith(
                    ("care_qdrant.console", "care_qdrant.encoders.terms.bm25", "care_qdrant.http")
                ):
                    yield from ((alias.name, str(file.relative_to(ROOT))) for alias in node.names)


def test_all_that_is_built_on_the_core_uses_public_names() -> None:
    # `learn` reads other programs' collections and registers what it learned: it works inside the contracts.
    internal = {
        (name, file)
        for name, file in _imported_names()
        if name not in {*care_qdrant.__all__, "bm25", *SHARED} and "/learn" not in file
    }
    assert not internal


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_code_in_the_documentation_imports_public_names(page: Path) -> None:
    named = re.findall(r"^from (care_qdrant[\w.]*) import ([\w, ]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    named = [found for found in named if not found[0].startswith("care_qdrant.integrations.")]
    assert all(module == "care_qdrant" for module, _ in named)
    assert {name.strip() for _, names in named for name in names.split(",")} <= set(care_qdrant.__all__)
