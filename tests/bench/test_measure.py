"""Tests that `make measure` measures the speeds that the pages state."""

import importlib
import re
import sys
from pathlib import Path

import click
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


@pytest.mark.parametrize("step", [step for step in measure.STEPS if step.command], ids=lambda step: step.result)
def test_a_program_takes_the_arguments_of_its_measurement(
    step: measure.Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "documents.npy").touch()
    (tmp_path / "queries.npy").touch()
    if step.needs in ("server", "vectors"):
        monkeypatch.setenv("QDRANT_BINARY", sys.executable)
        monkeypatch.setenv("QDRANT_URL", "http://localhost:6333")
    _, name, *arguments = measure._arguments(step, None, str(tmp_path), tmp_path / step.result)
    module = importlib.import_module(name)
    own = [one for one in vars(module).values() if isinstance(one, click.Command) and _module_of(one) == name]
    command = next((one for one in own if isinstance(one, click.Group)), own[0])
    if isinstance(command, click.Group):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(name, arguments)


def _module_of(command: click.Command) -> str:
    return command.callback.__module__ if command.callback else ""


def test_every_speed_in_a_table_of_the_pages_is_measured() -> None:
    read = set(re.findall(r'_read\("([\w./-]+)"\)', (ROOT / "docs/generate_measured.py").read_text(encoding="utf-8")))
    others = {
        name for name in read if re.search(r"kill|six-sources|known-items|serve-comparison|serve-clients|^gpu", name)
    }
    assert {name.split("/")[0] for name in read - others} <= {step.result for step in measure.STEPS}
