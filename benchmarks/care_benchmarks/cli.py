"""``care-bench``: the frame. Each command lies in a module of its own, which is imported when it is called."""

from importlib import import_module
from typing import NamedTuple

import click

from care_qdrant import __version__
from care_qdrant.cli import run as run_command


class _Entry(NamedTuple):
    target: str
    """``module:attribute`` under `care_benchmarks`."""
    help: str
    """For the list of commands, so that it opens without importing them."""


_COMMANDS = {
    "run": _Entry("commands.run:command", "Score models on tasks through Qdrant, with speed and statistics."),
    "compare": _Entry("commands.compare:command", "Put saved results side by side, paired query by query."),
    "report": _Entry("commands.report:command", "Draw the report of a saved result again."),
    "audit": _Entry("commands.audit:command", "Export unjudged documents that rank high, for annotation."),
    "golden": _Entry("commands.golden:command", "Make the vectors that an embeddings server is checked with."),
    "fetch": _Entry("commands.fetch:command", "Download public task sets."),
    "hybrid": _Entry("hybrid:hybrid", "Measure fusions of dense search and BM25."),
    "llama": _Entry("llama.cli:command", "Compare the LlamaIndex integration with the stock classes."),
    "encoder": _Entry("speed_query:command", "Time the query encoder against the stock class."),
    "start": _Entry("commands.start:command", "Time care --help and care search from a cold start."),
    "kill": _Entry("commands.kill:command", "Kill runs at random moments, and finish them."),
    "scale": _Entry("commands.scale:command", "Measure the memory that a large task takes."),
    "ingestion": _Entry("ingestion.cli:command", "Measure ingestion: kill -9, throughput, memory, waiting."),
    "deployment": _Entry("deployment.cli:command", "Attack attach, promote and publish, and measure them."),
}


class _LazyGroup(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[name].target.partition(":")
        command: click.Command = getattr(import_module(f"care_benchmarks.{module}"), attribute)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="care-bench")
def care_bench() -> None:
    """Accuracy, speed and statistics of retrieval, on the path that production uses.

    \b
    Example:
      care-bench run examples/sample --model built-in --output results/sample
    """


def main() -> None:
    """Run `care-bench`."""
    run_command(care_bench)


if __name__ == "__main__":
    main()
