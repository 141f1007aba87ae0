import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from care_benchmarks.cli import care_bench
from click.testing import CliRunner

from tests.bench.conftest import RERANK, write_jsonl

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)


def commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    children = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return [found for name, child in children if child for found in commands(child, f"{path} {name}")]


@pytest.mark.parametrize(
    ("path", "command"), commands(care_bench, "care-bench"), ids=lambda value: str(value).replace(" ", "-")
)
def test_every_command_has_an_example(path: str, command: click.Command) -> None:
    assert re.search(rf"Example:\s+(\w+=\S+ )?{path} ", command.help or ""), f"{path} has no example"


def test_the_list_of_commands_opens_without_the_libraries() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from care_benchmarks.cli import care_bench; "
        "assert 'Compare every system' in CliRunner().invoke(care_bench, ['--help']).output; "
        "heavy = {'numpy', 'torch', 'mteb', 'qdrant_client', 'scipy', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one/dev", "two/dev"], "2 of the tasks are called dev-Rerank, after their folders; rename one"),
    ],
)
def test_a_run_that_would_score_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    for folder in ("one", "two"):
        write_jsonl(tmp_path / folder / "dev" / "rerank.jsonl", RERANK)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(care_bench, ["run", *arguments, "--output", "out", "--no-speed"])
    assert said in f"{result.output} {result.exception}"
    assert not (tmp_path / "out").exists()


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(care_bench, ["nothing"]).exit_code == 2
