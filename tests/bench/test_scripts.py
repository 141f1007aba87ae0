"""The scripts outside the wheel: each can be imported, and each command shows how it is called."""

import re
from importlib import import_module
from pathlib import Path

import click
import pytest

from tests.test_cli import commands

ROOT = Path(__file__).parents[2]
SCRIPTS = [path for folder in ("experiments", "perf") for path in sorted(ROOT.glob(f"benchmarks/{folder}/*.py"))]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in SCRIPTS
    if re.search(r"^@click\.(command|group)", path.read_text(encoding="utf-8"), re.M)
]


@pytest.mark.parametrize("module", [*MODULES, "tests.reliability.__main__"])
def test_every_command_of_a_script_has_an_example(module: str) -> None:
    script = import_module(module)
    found = [each for each in vars(script).values() if isinstance(each, click.Command)]
    own = [each for each in found if each.callback.__module__ == module]  # type: ignore[union-attr]
    for group in [each for each in own if isinstance(each, click.Group)] or own:
        for path, command in commands(group, f"python -m {module.removesuffix('.__main__')}"):
            assert re.search(rf"Example:\n[\s\S]*\s{path} ", command.help or ""), path
            undocumented = [p.name for p in command.params if isinstance(p, click.Option) and not (p.help or p.hidden)]
            assert not undocumented, f"{path}: {undocumented}"
