"""LlamaIndex's own tests, unchanged, with its classes and with ours in their place.

One difference is wanted: ``test_filter_conditions`` looks at the condition that a whole number becomes, and ours is
another one, since 50 has to find a stored 50.0.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from care_qdrant.errors import InputError

Outcome = Literal["passed", "failed", "skipped", "error"]

SUITES = {
    "embedding": "llama-index-core/tests/embeddings",
    "ingestion": "llama-index-core/tests/ingestion",
    "qdrant store": "llama-index-integrations/vector_stores/llama-index-vector-stores-qdrant/tests",
}
_CORE = "llama-index-core"
"""Its conftest imports packages of other integrations. All that these suites use of it is IS_TESTING."""
_OPTIONS = ["-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--timeout=90"]
PLUGIN = "care_benchmarks.llama.upstream_plugin"


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One suite with both sets of classes."""

    suite: str
    sha256: str
    """Of the names and the contents of its test files: which version of them was run."""
    stock: dict[str, int]
    """Outcome → tests, with LlamaIndex's classes."""
    care: dict[str, int]
    """The same, with ours."""
    differences: dict[str, tuple[str, str]]
    """Test → its two outcomes, where they differ."""


def run_suite(checkout: Path, suite: str) -> SuiteResult:
    """Run the tests of a suite twice, each time in a fresh process.

    Args:
        checkout: Of LlamaIndex's repository, of the version that is installed.
        suite: One of `SUITES`.

    Raises:
        InputError: the checkout has no such tests.
    """
    folder = checkout / SUITES[suite]
    if not folder.is_dir():
        raise InputError(f"{folder}: is not there; expected a checkout of run-llama/llama_index")
    options = ["--noconftest"] if SUITES[suite].startswith(_CORE) else []
    stock, care = _outcomes(folder, options), _outcomes(folder, [*options, "-p", PLUGIN])
    differences = {
        test: (stock.get(test, "missing"), care.get(test, "missing"))
        for test in sorted({*stock, *care})
        if stock.get(test) != care.get(test)
    }
    return SuiteResult(suite, _digest(folder), dict(Counter(stock.values())), dict(Counter(care.values())), differences)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _outcomes(folder: Path, options: list[str]) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *options, f"--junitxml={report}", str(folder)],
            cwd=scratch,
            env={**os.environ, "IS_TESTING": "1"},
            capture_output=True,
            check=False,
        )
        if not report.is_file():
            raise InputError(f"{folder}: pytest could not start; is it installed, with pytest-asyncio?")
        return {_name(case): _outcome(case) for case in ElementTree.parse(report).iter("testcase")}


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"


def _outcome(case: ElementTree.Element) -> Outcome:
    for tag, outcome in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if case.find(tag) is not None:
            return outcome  # type: ignore[return-value]  # one of the literals above
    return "passed"
