"""The files that a wheel puts into other people's environments."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=110)
    [wheel] = folder.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_claims_no_name_of_others(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name}
    assert tops == {"care_qdrant", "llama_index", "care_trainer", "care_benchmarks", "care_data"}


def test_the_namespace_of_llama_index_stays_open(wheel_names: list[str]) -> None:
    shared = ("llama_index/", "llama_index/embeddings/", "llama_index/vector_stores/", "llama_index/postprocessor/")
    owned = {f"{folder}{file}" for folder in shared for file in ("__init__.py", "py.typed")}
    assert not owned & set(wheel_names)
    assert "llama_index/embeddings/care/__init__.py" in wheel_names


def test_the_wheel_carries_the_built_in_pair_and_the_configurations(wheel_names: list[str]) -> None:
    assert {"care_qdrant/builtin/care.json", "care_qdrant/builtin/term_weights.npz"} <= set(wheel_names)
    assert "care_qdrant/sample/corpus.jsonl" in wheel_names, "care demo reads it"
    assert any(name.startswith("care_trainer/configs/") and name.endswith(".toml") for name in wheel_names)


def test_the_built_in_pair_fits_the_repository() -> None:
    folder = ROOT / "care_qdrant" / "builtin"
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    assert sum(sizes.values()) <= 40e6
    assert sizes["query/onnx/model_int8.onnx"] + sizes["query/tokenizer.json"] <= 12e6


def test_every_install_hint_names_an_extra_that_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shipped = (
        "care_qdrant",
        "llama_integration/llama_index",
        "trainer/care_trainer",
        "benchmarks/care_benchmarks",
        "benchmarks/care_data",
        "docs",
    )
    files = [file for folder in shipped for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".md")]
    hints = re.compile(r"""needs_extra\("([\w-]+)"|(?:care-qdrant|'\.)\[([\w,-]+)\]""")
    named = {
        extra
        for file in [*files, *ROOT.glob("README*.md")]
        for found in hints.findall(file.read_text(encoding="utf-8"))
        for extra in "".join(found).split(",")
    }
    assert {"ingest", "learn", "serve", "zstd", "llama-index"} <= named <= extras.keys()


def test_every_tested_version_is_pinned_and_allowed() -> None:
    from packaging.requirements import Requirement

    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and line[0] != "#"
    )
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
        requirement = Requirement(line)
        if requirement.name != "care-qdrant":
            version = pins[requirement.name.lower().replace("_", "-")]
            assert requirement.specifier.contains(version), f"{line}: constraints.txt pins {version}"


def test_the_tested_versions_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2: a pin for a later one ends `make test` before it begins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    wanted = {found.name: found.metadata["Requires-Python"] for found in distributions()}
    assert not {name for name, python in wanted.items() if python and not SpecifierSet(python).contains(oldest)}


def test_every_imported_distribution_is_declared() -> None:
    """A library that only comes along with another one may go with its next version."""
    import ast
    import sys
    from importlib.metadata import packages_distributions

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name, extra in extras.items() if name != "dev" for line in extra)]
    declared = {Requirement(line).name.lower().replace("_", "-") for line in lines}
    declared.add("pydantic-core")  # pydantic pins one version of it
    own = {"care_qdrant", "care_trainer", "care_benchmarks", "care_data", "llama_index", *sys.stdlib_module_names}
    distributions = packages_distributions()
    undeclared = {
        (module, str(file.relative_to(ROOT)))
        for folder in (
            "care_qdrant",
            "llama_integration/llama_index",
            "trainer",
            "benchmarks/care_benchmarks",
            "benchmarks/care_data",
        )
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if (module := name.partition(".")[0]) not in own
        and not declared & {each.lower().replace("_", "-") for each in distributions.get(module, [module])}
    }
    assert undeclared == set()
