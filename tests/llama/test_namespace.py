"""Our part of LlamaIndex's namespace, installed beside llama-index-core and taken away again."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("embeddings", "vector_stores", "postprocessor")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that owns llama-index-core and borrows everything else from this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = _site(folder)
    for file in distribution("llama-index-core").files or ():
        source = Path(str(file.locate()))
        if source.is_file() and ".." not in file.parts and "__pycache__" not in file.parts:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, site / file)
    borrowed = [sysconfig.get_paths()["purelib"]]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_it_comes_and_goes_without_touching_llama_index_core(environment: Path, kind: str, tmp_path: Path) -> None:
    before = _core_files(environment)
    _pip(environment, "install", "--no-deps", "--no-build-isolation", *_what(kind, tmp_path))
    assert _core_files(environment) == before
    for part in OURS:
        assert Path(_python(environment, f"import llama_index.{part}.care as it; print(it.__file__)")).is_file()
    assert _python(environment, "import llama_index.core; print(llama_index.core.__file__)").startswith(
        str(environment)
    )
    _pip(environment, "uninstall", "--yes", "care-qdrant")
    assert _core_files(environment) == before
    site = _site(environment)
    assert not any((site / "llama_index" / part / "care").exists() for part in OURS)
    assert not list(site.glob("*care_qdrant*"))
    assert _python(environment, "import llama_index.core; print('well')") == "well"


def _what(kind: str, folder: Path) -> list[str]:
    if kind == "editable":
        pytest.importorskip("editables", reason="hatchling needs it for an editable install without isolation")
        return ["--editable", str(ROOT)]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return [str(next(folder.glob("*.whl")))]


def _pip(environment: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "--quiet", *arguments]
    subprocess.run(command, check=True)


def _python(environment: Path, code: str) -> str:
    done = subprocess.run(
        [environment / "bin" / "python", "-c", code], env={"PATH": ""}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _site(environment: Path) -> Path:
    return next((environment / "lib").glob("python3.*")) / "site-packages"


def _core_files(environment: Path) -> dict[str, int]:
    core = _site(environment) / "llama_index" / "core"
    files = (file for file in core.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return {file.relative_to(core).as_posix(): file.stat().st_size for file in files}
