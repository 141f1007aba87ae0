"""The command line. Each command is a thin module that imports what it runs in its function: `--help` is instant."""

import sys

import click

from care_qdrant import __version__
from care_qdrant.cli.groups import CONTEXT, LazyGroup
from care_qdrant.errors import CareError

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
    "model",
    "serve",
)


@click.group(
    cls=LazyGroup,
    modules={name: f"care_qdrant.cli.{name}:command" for name in _COMMANDS},
    context_settings=CONTEXT,
)
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
