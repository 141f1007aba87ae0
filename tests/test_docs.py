"""The documentation says what the commands say, and points at what is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from care_qdrant import errors
from tests.forks import FORKS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "skills").rglob("*.md"))


@pytest.mark.parametrize(
    "script",
    ["generate_cli_reference.py", "generate_measured.py", "generate_reference.py", "generate_schemas.py"],
)
def test_what_is_generated_is_up_to_date(script: str) -> None:
    program = f"import runpy; runpy.run_path({str(ROOT / 'docs' / script)!r}, run_name='__main__')"
    subprocess.run([FORKS.python, "-c", program, "--check"], check=True, timeout=100)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    """The log of experiments names the files of its time; a pattern with ``*`` stands for files that it matches."""
    if page.parent.name == "experiments" or page.name == "experiments.md":
        return
    tops = "benchmarks|care_qdrant|docs|examples|llama_integration|tests|trainer"
    named = re.findall(rf"(?<![\w./])((?:{tops})/[\w./*-]*[\w*])", page.read_text(encoding="utf-8"))
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_chinese_readme_has_all_parts_of_the_english_one() -> None:
    parts = (r"^## ", r"^\|", r"^- ", r"^!\[", r"^```text", r"^```python")
    english, chinese = (
        [len(re.findall(part, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)) for part in parts]
        for name in ("README.md", "README.zh.md")
    )
    assert chinese == english


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(make \w+)\n```", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert blocks == ["make demo", "make test"]
    assert all(f"\n{block.removeprefix('make ')}:" in makefile for block in blocks)


def test_the_table_of_environment_variables_has_all_that_is_read_and_nothing_else() -> None:
    read: set[str] = set()
    sources = ""
    for package in ("care_qdrant", "llama_integration", "trainer/care_trainer", "benchmarks/care_benchmarks"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            sources += text
            read |= set(re.findall(r"""(?:envvar=|environ\.get\(|setting\()"([A-Z_]+)\"""", text))
    configuration = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    listed = {
        name
        for row in re.findall(r"^\| (`[A-Z_`, ]+`) \|", configuration, re.MULTILINE)
        for name in re.findall(r"\w+", row)
    }
    assert {"QDRANT_URL", "CARE_PATIENCE", "TQDM_DISABLE"} <= read <= listed
    assert [name for name in listed if name.startswith("CARE_") and name not in sources] == []


def test_the_documented_completion_completes() -> None:
    install = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r'eval "\$\((\w+)=bash_source ([\w-]+)\)"', install))
    assert lines == {"_CARE_COMPLETE": "care", "_CARE_INGEST_COMPLETE": "care-ingest"}
    modules = {"care": "care_qdrant.cli", "care-ingest": "care_qdrant.cli.ingest"}
    for variable, program in lines.items():
        code = f"import sys; sys.argv[0] = {program!r}; from {modules[program]} import main; main()"
        words = {"COMP_WORDS": f"{program} --vers", "COMP_CWORD": "1", variable: "bash_complete"}
        environment = {**os.environ, **words}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        assert "plain,--version" in done.stdout


def test_the_table_of_exit_codes_has_all_of_them() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `?(\w*)", (ROOT / "docs/how-to/troubleshooting.md").read_text("utf-8"), re.MULTILINE
    )
    documented = {int(code): name for code, name in rows}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and errors.CareError in kind.__bases__]
    assert {kind.exit_code: kind.__name__ for kind in kinds}.items() <= documented.items()
    assert {errors.REJECTED_ROWS_EXIT_CODE, errors.INTERRUPTED_EXIT_CODE} <= documented.keys()


@pytest.mark.timeout(120)
def test_the_site_gives_language_models_every_page_as_markdown(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=100)
    listed = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    pages = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", listed, re.MULTILINE)
    assert listed.startswith("# care-qdrant\n\n> Asymmetric retrieval")
    assert [line for line in listed.splitlines() if line.startswith("- ") and not re.search(r"\): [\w`]", line)] == []
    sources = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert set(pages) == sources
    whole = (tmp_path / "llms-full.txt").read_text(encoding="utf-8")
    for page in pages:
        of_site, source = ((folder / page).read_text(encoding="utf-8") for folder in (tmp_path, ROOT / "docs"))
        assert of_site.strip() in whole
        assert re.findall(r"^#.*", of_site, re.MULTILINE) == re.findall(r"^#.*", source, re.MULTILINE)
