"""The three distributions for LlamaIndex's repository: built, installed beside each other, and imported from there."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NAMES = {
    "llama-index-embeddings-care": "llama_index.embeddings.care",
    "llama-index-vector-stores-care": "llama_index.vector_stores.care",
    "llama-index-postprocessor-care": "llama_index.postprocessor.care",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributions")
    script = ROOT / "llama_integration" / "make_distributions.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_has_what_llama_index_asks_for(folder: Path, name: str) -> None:
    there = {path.name for path in (folder / name).iterdir()}
    assert there >= {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests", "llama_index"}
    project = tomllib.loads((folder / name / "pyproject.toml").read_text())
    assert project["tool"]["llamahub"]["import_path"] == NAMES[name]
    needs = {Requirement(line).name: Requirement(line) for line in project["project"]["dependencies"]}
    assert "<0.15" in str(needs["llama-index-core"].specifier) and "care-qdrant" in needs
    subprocess.run([sys.executable, "-m", "ruff", "check", "--select", "F", str(folder / name)], check=True)


def test_they_are_built_installed_and_imported_together(folder: Path, tmp_path: Path) -> None:
    owned: set[str] = set()
    for name in NAMES:
        build = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(tmp_path),
            str(folder / name),
        ]
        subprocess.run(build, check=True, capture_output=True, timeout=110)
    for wheel in tmp_path.glob("*.whl"):
        names = {each for each in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in each}
        assert names and not names & owned and all(each.startswith("llama_index/") for each in names)
        owned |= names
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    tests = [str(test) for name in NAMES for test in (folder / name / "tests").glob("test_*.py")]
    code = (
        "import sys, runpy, llama_index.embeddings.care as it\n"
        f"assert it.__file__.startswith({str(tmp_path)!r}), it.__file__\n"
        "for test in sys.argv[1:]:\n    runpy.run_path(test)['test_class']()\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, *tests], check=True, env=environment, cwd=tmp_path, timeout=110)
