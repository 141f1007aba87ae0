"""What all programs of this project share: running a command, its options, its log, tables for a terminal.

Commands of `care_qdrant.cli`, the trainer and the harness are built on it; it knows none of them.
"""

import sys

import click

from care_qdrant.console.configuration import read_defaults
from care_qdrant.console.logs import log_error, set_up_logs
from care_qdrant.errors import INTERRUPTED_EXIT_CODE, CareError


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


def _fail(message: str, exit_code: int) -> None:
    log_error(message)
    sys.exit(exit_code)
