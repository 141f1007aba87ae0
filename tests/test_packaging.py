"""The files that a wheel puts into other people's environments."""

import re
import runpy
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution, distributions
from itertools import permutations
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from care_qdrant.model.card import read_card

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHARE_A_NAMESPACE = ("care-qdrant", "llama-index-core", "llama-index-vector-stores-qdrant")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=110)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
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


def test_every_package_says_that_it_is_typed(wheel_names: list[str]) -> None:
    packages = {name.rpartition("/")[0] for name in wheel_names if re.fullmatch(r"care_\w+/__init__.py", name)}
    packages |= {f"llama_index/{group}/care" for group in ("embeddings", "vector_stores", "postprocessor")}
    assert len(packages) == 7
    assert {f"{package}/py.typed" for package in packages} <= set(wheel_names)


def test_the_wheel_says_under_which_licences_its_weights_are(wheel: Path) -> None:
    card = (ROOT / "care_qdrant/builtin/README.md").read_text(encoding="utf-8")
    [licence] = re.findall(r"^license: (.+)$", card, re.MULTILINE)
    bases = {base["license"] for base in read_card(ROOT / "care_qdrant/builtin").bases}
    assert PROJECT["license"].split(" AND ") == ["Apache-2.0", licence, *bases]
    [weights] = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("licenses/WEIGHTS.md")]
    said = zipfile.ZipFile(wheel).read(weights).decode()
    assert all(name in said for name in (licence, *bases))


def test_the_citation_names_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]


def test_no_link_of_the_description_depends_on_the_repository(wheel: Path) -> None:
    [name] = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    description = message_from_bytes(zipfile.ZipFile(wheel).read(name)).get_payload(decode=True).decode()
    assert description.startswith("# care-qdrant")
    assert not re.findall(r"\]\((?!https?://|#)", description)


def test_links_of_the_description_lead_to_the_tag_of_the_version() -> None:
    absolute_links = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute_links"]
    text = "[a](docs/a.md#b) ![p](docs/p.png) [c](#c) [d](https://d/e)"
    address = "https://host/owner/name"
    assert absolute_links(text, address, "v1.0") == (
        f"[a]({address}/blob/v1.0/docs/a.md#b) ![p]({address}/raw/v1.0/docs/p.png) [c](#c) [d](https://d/e)"
    )


@pytest.fixture(scope="module")
def wheels(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Our wheel, and those of the installed distributions that share a namespace with it."""
    folder = tmp_path_factory.mktemp("wheels")
    return {SHARE_A_NAMESPACE[0]: wheel} | {name: _wheel_again(name, folder) for name in SHARE_A_NAMESPACE[1:]}


def _wheel_again(name: str, folder: Path) -> Path:
    """Make a wheel of an installed distribution."""
    installed = distribution(name)
    path = folder / f"{name.replace('-', '_')}-{installed.version}-py3-none-any.whl"
    written_by_pip = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")
    files = [
        file
        for file in installed.files or ()
        if ".." not in file.parts and file.suffix != ".pyc" and file.name not in written_by_pip
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.write(str(file.locate()), str(file))
        record = f"{path.stem.removesuffix('-py3-none-any')}.dist-info/RECORD"
        archive.writestr(record, "".join(f"{name},,\n" for name in [*map(str, files), record]))
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", permutations(SHARE_A_NAMESPACE), ids="+".join)
def test_what_is_uninstalled_leaves_the_others_whole(
    order: tuple[str, ...], wheels: dict[str, Path], tmp_path: Path
) -> None:
    """Each file has one owner, or the last one installed would take files of the others with it."""
    venv.create(tmp_path, with_pip=False)
    [site] = tmp_path.glob("lib/python*/site-packages")
    contents = {name: set(zipfile.ZipFile(path).namelist()) for name, path in wheels.items()}
    for uninstalled in (order, order[::-1]):
        for name in order:
            _pip(tmp_path, "install", "--no-deps", "--no-index", "--no-compile", str(wheels[name]))
        for number, name in enumerate(uninstalled, 1):
            _pip(tmp_path, "uninstall", "--yes", name)
            kept = set().union(*(contents[other] for other in uninstalled[number:]))
            left = {str(file.relative_to(site)) for file in site.rglob("*") if file.is_file()}
            assert {file for file in left if ".dist-info/" not in file} == {
                file for file in kept if ".dist-info/" not in file
            }


def _pip(environment: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "--quiet", *arguments]
    subprocess.run(command, check=True, timeout=110)


def test_the_built_in_pair_fits_the_repository() -> None:
    folder = ROOT / "care_qdrant" / "builtin"
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    assert sum(sizes.values()) <= 40e6
    assert sum(size for file, size in sizes.items() if file.startswith("query/")) <= 12e6


def test_every_install_hint_names_an_extra_that_is_there() -> None:
    extras = PROJECT["optional-dependencies"]
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
    extras = PROJECT["optional-dependencies"].values()
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]:
        requirement = Requirement(line)
        if requirement.name != "care-qdrant":
            version = pins[requirement.name.lower().replace("_", "-")]
            assert requirement.specifier.contains(version), f"{line}: constraints.txt pins {version}"


def test_the_tested_versions_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2: a pin for a later one ends `make test` before it begins."""
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    wanted = {found.name: found.metadata["Requires-Python"] for found in distributions()}
    assert not {name for name, python in wanted.items() if python and not SpecifierSet(python).contains(oldest)}


def test_every_imported_distribution_is_declared() -> None:
    """A library that only comes along with another one may go with its next version."""
    import ast
    import sys
    from importlib.metadata import packages_distributions

    from packaging.requirements import Requirement

    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name, extra in extras.items() if name != "dev" for line in extra)]
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
