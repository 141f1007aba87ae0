"""The command line. Each command is a thin module that imports what it runs in its function: `--help` is instant."""

import sys

import click

from care_qdrant.cli.configuration import read_defaults
from care_qdrant.cli.groups import CONTEXT, LazyGroup
from care_qdrant.cli.logs import log_error, log_options, set_up_logs
from care_qdrant.errors import INTERRUPTED_EXIT_CODE, CareError
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
    "serve",
    "model",
)


@click.group(
    cls=LazyGroup,
    modules={name: f"care_qdrant.cli.{name}:command" for name in _COMMANDS},
    entry_point_group="care_qdrant.commands",
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


def run(command: click.Command) -> None:
    """Run a command as a program: one line for an expected error, and its exit code."""
    set_up_logs()
    try:
        command.main(standalone_mode=False, default_map=read_defaults(command))
    except CareError as error:
        _fail(str(error), error.exit_code)
    except click.UsageError as error:
        # As `error.show` does, but with the one word that every error of these programs begins with.
        if error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
            click.echo(f"Try '{error.ctx.command_path} --help' for help.", err=True)
        _fail(error.format_message(), error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; run the same command again to go on", INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def main() -> None:
    """Run `care`."""
    run(care)


def _fail(message: str, exit_code: int) -> None:
    log_error(message)
    sys.exit(exit_code)
