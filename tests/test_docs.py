"""The documentation says what the commands say, and points at what is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("script", ["generate_api_reference.py", "generate_cli_reference.py", "generate_measured.py"])
def test_what_is_generated_is_up_to_date(script: str) -> None:
    subprocess.run([sys.executable, str(ROOT / "docs" / script), "--check"], check=True, timeout=100)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(make \w+)\n```", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert blocks == ["make demo", "make test"]
    assert all(f"\n{block.removeprefix('make ')}:" in makefile for block in blocks)
