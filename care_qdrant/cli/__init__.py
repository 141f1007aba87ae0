"""The command line. Each command is a thin module that imports what it runs in its function: `--help` is instant."""

import click

from care_qdrant.console import run
from care_qdrant.console.groups import CONTEXT, Program
from care_qdrant.console.logs import log_options
from care_qdrant.version import __version__

_COMMANDS = (
    "ingest",
    "search",
    "attach",
    "verify",
    "detach",
    "doctor",
    "collections",
    "promote",
    "publish",
    "bulk",
    "serve",
    "demo",
    "model",
)


@click.group(
    cls=Program,
    modules={name: f"care_qdrant.cli.{name}:command" for name in _COMMANDS},
    entry_points_of="care_qdrant.commands",
    context_settings=CONTEXT,
)
@click.version_option(__version__, prog_name="care")
@log_options
def care() -> None:
    """Asymmetric retrieval: an LLM encodes documents into Qdrant, a small BERT answers queries.

    \b
    Example:
      care ingest corpus.jsonl
      care search "糖尿病人能吃西瓜吗"
    """


def main() -> None:
    """Run `care`."""
    run(care)
