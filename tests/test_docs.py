"""The documentation says what the commands say, and points at what is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from care_qdrant import errors

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(
    "script",
    ["generate_api_reference.py", "generate_cli_reference.py", "generate_measured.py", "generate_schemas.py"],
)
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


def test_the_table_of_exit_codes_has_all_of_them() -> None:
    rows = re.findall(r"^\| (\d+) \| `?(\w*)", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)
    documented = {int(code): name for code, name in rows}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and errors.CareError in kind.__bases__]
    assert {kind.exit_code: kind.__name__ for kind in kinds}.items() <= documented.items()
    assert {errors.REJECTED_ROWS_EXIT_CODE, errors.INTERRUPTED_EXIT_CODE} <= documented.keys()
