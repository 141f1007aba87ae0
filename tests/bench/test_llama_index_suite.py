"""The runner of LlamaIndex's own tests: it measures those of the installed version, or says why not."""

from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.experiments.llama_index_suite import run_suite
from care_qdrant.errors import InputError

TESTS = """
import llama_index.core
from llama_index.core import MockEmbedding

def test_one():
    assert MockEmbedding(embed_dim=4).get_text_embedding("x") == [0.5] * 4

def test_the_installed_package_is_tested():
    assert not hasattr(llama_index.core, "of_the_checkout")

def test_other_class():
    assert MockEmbedding.__module__.startswith("llama_index.core")
"""


def checkout(folder: Path, found: str) -> Path:
    """Make a checkout with a package of its own beside the tests."""
    core = folder / "llama-index-core"
    (core / "tests" / "embeddings").mkdir(parents=True)
    (core / "llama_index" / "core").mkdir(parents=True)
    (core / "llama_index" / "core" / "__init__.py").write_text("of_the_checkout = True\n")
    for package in (core / "tests", core / "tests" / "embeddings"):
        (package / "__init__.py").touch()
    (core / "tests" / "embeddings" / "test_it.py").write_text(TESTS)
    (core / "pyproject.toml").write_text(f'[project]\nname = "llama-index-core"\nversion = "{found}"\n')
    return folder


def test_a_relative_path_measures_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path / "there", version("llama-index-core"))
    monkeypatch.chdir(tmp_path)
    result = run_suite(Path("there"), "embedding")
    assert (result.stock, result.care) == ({"passed": 3}, {"passed": 2, "failed": 1})
    [(test, difference)] = result.differences.items()
    assert (test, difference.stock, difference.care) == ("test_it::test_other_class", "passed", "failed")


def test_a_checkout_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the tests are those of llama-index-core 0\.1\.0, and .* is installed"):
        run_suite(checkout(tmp_path, "0.1.0"), "embedding")


def test_no_checkout_and_no_tests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a checkout"):
        run_suite(tmp_path, "embedding")
    empty = checkout(tmp_path / "empty", version("llama-index-core"))
    (empty / "llama-index-core" / "tests" / "embeddings" / "test_it.py").unlink()
    with pytest.raises(InputError, match="ran no test"):
        run_suite(empty, "embedding")
