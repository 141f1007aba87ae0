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


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_code_in_the_documentation_imports_public_names(page: Path) -> None:
    named = re.findall(r"^from (care_qdrant[\w.]*) import ([\w, ]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(
        module.startswith(("care_qdrant.integrations.", "care_qdrant.errors")) or module == "care_qdrant"
        for module, _ in named
    )
    names = {name.strip() for module, names in named if module == "care_qdrant" for name in names.split(",")}
    assert names <= set(care_qdrant.__all__)


def test_a_type_checker_sees_each_public_name_where_it_is_defined() -> None:
    tree = ast.parse((ROOT / "care_qdrant/__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == {name: f"care_qdrant.{module}" for name, module in care_qdrant._HOME.items()}
