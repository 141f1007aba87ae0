"""LlamaIndex's own tests, unchanged, with its classes and with ours in their place.

The tests are those of the installed versions: tests of another version fail for reasons that are not ours. They run in
a copy of their folder, since beside it lies a package that Python would import in the place of the installed one.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, cast
from xml.etree import ElementTree

import click
from care_benchmarks.machine import commit_of

from benchmarks.perf.measured import output_option, plain, save_measured, shown
from care_qdrant.errors import InputError

Outcome = Literal["passed", "failed", "skipped", "error"]

_CORE = "llama-index-core"
_STORE = "llama-index-vector-stores-qdrant"
_FOLDERS = {_CORE: _CORE, _STORE: f"llama-index-integrations/vector_stores/{_STORE}"}
"""Package to its folder in the repository."""
SUITES = {
    "embedding": (_CORE, "tests/embeddings"),
    "ingestion": (_CORE, "tests/ingestion"),
    "qdrant store": (_STORE, "tests"),
}
_BY_ROLE = (
    "the cache of a CareEmbedding has a key per role and pair, so that a query never gets the vector of a document of "
    "the same words; the test looks under the text alone"
)
_MOCK = (
    "the client of the test is a mock without the configuration of a collection, which CareVectorStore reads before "
    "anything else"
)
REASONS = {
    "test_with_cache::test_sync_get_with_cache": _BY_ROLE,
    "test_with_cache::test_sync_get_batch_with_cache": _BY_ROLE,
    "test_with_cache::test_async_get_with_cache": _BY_ROLE,
    "test_with_cache::test_async_get_batch_with_cache": _BY_ROLE,
    "test_vector_stores_qdrant::test_filter_conditions": _MOCK,
    "test_vector_stores_qdrant::test_sparse_vector_name_detection_keeps_new": _MOCK,
    "test_vector_stores_qdrant::test_sparse_vector_name_detection_switches_to_legacy": _MOCK,
    "test_vector_stores_qdrant::test_sparse_vector_name_respects_user_specified": _MOCK,
}
"""Test to why it ends in another way with our classes."""
_OPTIONS = ["-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--timeout=90"]
PLUGIN = "benchmarks.experiments.llama_index_plugin"


@dataclass(frozen=True, slots=True)
class Difference:
    """A test that ends in two ways."""

    stock: str
    care: str
    reason: str


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One suite with both sets of classes."""

    suite: str
    package: str
    version: str
    """Version of the tests and of the installed package."""
    sha256: str
    """Hash of the names and contents of its test files."""
    stock: dict[str, int]
    """Outcome → number of tests, with LlamaIndex's classes."""
    care: dict[str, int]
    """Outcome → number of tests, with our classes."""
    passing_with_neither: list[str]
    """Tests that fail in this environment with LlamaIndex's classes, too."""
    differences: dict[str, Difference]
    """Test → its two outcomes, if they differ."""


def run_suite(checkout: Path, suite: str) -> SuiteResult:
    """Run the tests of a suite twice, each time in a fresh process."""
    package, tests = SUITES[suite]
    folder = checkout.resolve() / _FOLDERS[package]
    installed = require_same_version(folder, package)
    stock, care = _outcomes(folder / tests, package, []), _outcomes(folder / tests, package, ["-p", PLUGIN])
    differences = {
        test: Difference(ends[0], ends[1], REASONS.get(test, "unexplained"))
        for test in sorted({*stock, *care})
        if (ends := (stock.get(test, "missing"), care.get(test, "missing")))[0] != ends[1]
    }
    broken = sorted(test for test in stock if {stock[test], care.get(test)} <= {"failed", "error"})
    return SuiteResult(
        suite=suite,
        package=package,
        version=installed,
        sha256=_digest(folder / tests),
        stock=dict(Counter(stock.values())),
        care=dict(Counter(care.values())),
        passing_with_neither=broken,
        differences=differences,
    )


def require_same_version(folder: Path, package: str) -> str:
    """Return the version of a package in a checkout, which has to be the installed one."""
    project = folder / "pyproject.toml"
    if not project.is_file():
        raise InputError(f"{project}: is not there; expected a checkout of run-llama/llama_index")
    found, installed = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"], version(package)
    if found != installed:
        raise InputError(
            f"{project}: the tests are those of {package} {found}, and {installed} is installed; check out the commit "
            f"of {installed}, or put the other version first: pip install --no-deps --target SITE {package}=={found}, "
            "and PYTHONPATH=SITE"
        )
    return installed


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _outcomes(folder: Path, package: str, options: list[str]) -> dict[str, Outcome]:
    # The conftest of the core imports packages of other integrations. These suites use only IS_TESTING of it.
    own = ["--noconftest"] if package == _CORE else []
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        copy = shutil.copytree(folder, Path(scratch) / "tests")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *own, *options, f"--junitxml={report}", str(copy)],
            cwd=scratch,
            env={**os.environ, "IS_TESTING": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        cases = list(ElementTree.parse(report).iter("testcase")) if report.is_file() else []
        if not cases:
            said = (run.stdout + run.stderr)[-500:]
            raise InputError(f"{folder}: pytest ran no test; is it installed, with pytest-asyncio? {said}")
        return {_name(case): _outcome(case) for case in cases}


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"


def _outcome(case: ElementTree.Element) -> Outcome:
    for tag, outcome in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if case.find(tag) is not None:
            return cast(Outcome, outcome)
    return "passed"


@click.command()
@click.argument("checkout", type=click.Path(path_type=Path, exists=True, file_okay=False))
@output_option
def main(checkout: Path, output: Path) -> None:
    """Run LlamaIndex's own tests with its classes and with ours; CHECKOUT is its repository, which you provide.

    \b
    Example:
      python -m benchmarks.experiments.llama_index_suite ../llama_index --output benchmarks/results/llama-upstream.json
    """
    results = [shown(run_suite(checkout, suite)) for suite in SUITES]
    save_measured(
        output, {"repository": "run-llama/llama_index", "tests_of": commit_of(checkout), "suites": plain(results)}
    )


if __name__ == "__main__":
    main()
