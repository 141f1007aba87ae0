"""The frame of all programs of this project: running a command, its options, its log, tables for a terminal.

Commands of `care_qdrant.cli`, the trainer and the harness are built on it; it knows none of them.
"""

import os
import sys
from io import TextIOWrapper

import click

from care_qdrant.console.configuration import read_defaults
from care_qdrant.console.logs import log_error, set_up_logs
from care_qdrant.errors import INSTALL, INTERRUPTED_EXIT_CODE, CareError, InputError, MissingExtra, extra_of


def run(command: click.Command) -> None:
    """Run a command as a program: one line for an expected error, and its exit code."""
    set_up_logs()
    _show_half_characters()
    try:
        _require_characters(sys.argv[1:])
        command.main(standalone_mode=False, default_map=read_defaults(command))
    except CareError as error:
        _fail(str(error), error.exit_code)
    except ImportError as error:
        if (extra := extra_of(error.name or "")) is None:
            raise
        _fail(f"this needs {error.name}, which is not installed: {INSTALL.format(extra=extra)}", MissingExtra.exit_code)
    except click.UsageError as error:
        _show_usage(error)
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


def _show_half_characters() -> None:
    """Let a stored text that holds half a character end no command: it is printed as JSON escapes it."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _show_usage(error: click.UsageError) -> None:
    """Print what `error.show` does before its message, which here begins as every error of these programs does."""
    if error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
        click.echo(f"Try '{error.ctx.command_path} --help' for help.", err=True)


def _require_characters(arguments: list[str]) -> None:
    """Refuse an argument in another encoding than UTF-8, unless it is the name of a file."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            if os.path.lexists(argument):
                continue
            raise InputError(
                f"argument {os.fsencode(argument)!r}: its bytes are no UTF-8, so perhaps GBK; expected UTF-8: set the "
                "terminal, or convert the script (iconv -f GBK -t UTF-8)"
            ) from None


def _fail(message: str, exit_code: int) -> None:
    log_error(message)
    sys.exit(exit_code)
