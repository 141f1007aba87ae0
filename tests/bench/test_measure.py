"""Tests that `make measure` measures the speeds that the pages state."""

import importlib
import re
from pathlib import Path

import pytest

from benchmarks.perf import measure

ROOT = Path(__file__).parents[2]
PAGES = [*(ROOT / "docs/evidence").glob("*.md"), ROOT / "docs/generate_measured.py"]


@pytest.mark.parametrize("step", measure.STEPS, ids=lambda step: step.result)
def test_a_measurement_has_a_program_a_result_and_a_page(step: measure.Step) -> None:
    assert (measure.RESULTS / step.result).exists()
    assert any(step.result in page.read_text(encoding="utf-8") for page in PAGES)
    if step.command:
        importlib.import_module(f"benchmarks.perf.{step.command.split()[0]}")


def test_every_speed_in_a_table_of_the_pages_is_measured() -> None:
    read = set(re.findall(r'_read\("([\w./-]+)"\)', (ROOT / "docs/generate_measured.py").read_text(encoding="utf-8")))
    others = {name for name in read if re.search(r"kill|ablations|serve-comparison|serve-clients|^gpu", name)}
    assert {name.split("/")[0] for name in read - others} <= {step.result for step in measure.STEPS}
