"""LlamaIndex's own tests, unchanged, with its classes and with ours in their place.

One difference is intended: ``test_filter_conditions`` checks the condition that an integer becomes, and ours differs,
since 50 has to find a stored 50.0.
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

import click

from benchmarks.perf.measured import output_option, plain, save_measured, shown
from care_qdrant.errors import InputError

Outcome = Literal["passed", "failed", "skipped", "error"]

SUITES = {
    "embedding": "llama-index-core/tests/embeddings",
    "ingestion": "llama-index-core/tests/ingestion",
    "qdrant store": "llama-index-integrations/vector_stores/llama-index-vector-stores-qdrant/tests",
}
_CORE = "llama-index-core"
"""Its conftest imports packages of other integrations. These suites use only IS_TESTING of it."""
_OPTIONS = ["-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--timeout=90"]
PLUGIN = "benchmarks.experiments.llama_index_plugin"


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One suite with both sets of classes."""

    suite: str
    sha256: str
    """Hash of the names and contents of its test files."""
    stock: dict[str, int]
    """Outcome → number of tests, with LlamaIndex's classes."""
    care: dict[str, int]
    """Outcome → number of tests, with our classes."""
    differences: dict[str, tuple[str, str]]
    """Test → its two outcomes, if they differ."""


def run_suite(checkout: Path, suite: str) -> SuiteResult:
    """Run the tests of a suite twice, each time in a fresh process.

    Args:
        checkout: Checkout of LlamaIndex's repository in the installed version.
        suite: One of `SUITES`.

    Raises:
        InputError: The checkout has no such tests.
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
            env={**os.environ, "IS_TESTING": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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


@click.command()
@click.argument("checkout", type=click.Path(path_type=Path, exists=True, file_okay=False))
@output_option
def main(checkout: Path, output: Path) -> None:
    """Run LlamaIndex's own tests with its classes and with ours; CHECKOUT is its repository, which you provide.

    \b
    Example:
      python -m benchmarks.experiments.llama_index_suite ../llama_index --output benchmarks/results/llama-upstream.json
    """
    results = [shown(run_suite(checkout.resolve(), suite)) for suite in SUITES]
    save_measured(output, {"suites": plain(results)})


if __name__ == "__main__":
    main()
