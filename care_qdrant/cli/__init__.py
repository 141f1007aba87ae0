"""The command line. Each command is a thin module that imports what it runs in its function: `--help` is instant."""

import sys
from importlib import import_module

import click

from care_qdrant import __version__
from care_qdrant.errors import CareError

_COMMANDS = ("attach", "collections", "detach", "doctor", "ingest", "model", "promote", "publish", "search", "verify")


class _LazyGroup(click.Group):
    """Finds the command NAME as ``command`` in the module ``care_qdrant.cli.NAME``."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"care_qdrant.cli.{name}").command
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="care")
def care() -> None:
    """Asymmetric retrieval: an LLM encodes documents into Qdrant, a small BERT answers queries.

    \b
    Example:
      care ingest corpus.jsonl
      care search "糖尿病人能吃西瓜吗"
    """


def run(command: click.Command) -> None:
    """Run a command as a program: one line for an expected error, and its exit code."""
    try:
        command.main(standalone_mode=False)
    except CareError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; run the same command again to go on", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def main() -> None:
    """Run `care`."""
    run(care)


def _fail(message: str, exit_code: int) -> None:
    click.echo(f"error: {message}", err=True)
    sys.exit(exit_code)
