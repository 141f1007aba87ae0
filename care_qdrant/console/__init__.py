"""The frame of all programs of this project: running a command, its options, its log, tables for a terminal.

Commands of `care_qdrant.cli`, the trainer and the harness are built on it; it knows none of them.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper

import click

from care_qdrant.console.configuration import read_defaults
from care_qdrant.console.logs import log_error, set_up_logs
from care_qdrant.console.text import echo
from care_qdrant.errors import INSTALL, INTERRUPTED_EXIT_CODE, CareError, InputError, MissingExtra, extra_of

logger = logging.getLogger(__name__)


def run(command: click.Command) -> None:
    """Run a command as a program: one line for an expected error, and its exit code."""
    _open_standard_streams()
    was_terminated = _interrupt_when_terminated()
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
        log_error("interrupted; run the same command again to continue")
        if was_terminated():  # the parent process sees that its signal ended the program
            sys.stdout.flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except OSError as error:  # from the machine, such as a full disk; click ends the program where a pipe is closed
        logger.debug("where it happened", exc_info=True)
        _drop_unwritten_output()
        place = "a file or the standard output" if error.filename is None else os.fsdecode(error.filename)
        _fail(f"{place}: {error.strerror or error}; correct this, and run the same command again", CareError.exit_code)


def _interrupt_when_terminated() -> Callable[[], bool]:
    """Let SIGTERM, by which schedulers and containers end a program, end it as Ctrl-C does: with its report.

    Returns:
        Whether the signal has come.
    """
    received, process = threading.Event(), os.getpid()

    def interrupt(number: int, _frame: object) -> None:
        if os.getpid() != process:  # a process that was forked off ends as it would without this
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.set()
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the caller has set a handler
        signal.signal(signal.SIGTERM, interrupt)
    return received.is_set


def _open_standard_streams() -> None:
    """Connect a standard stream that the caller closed to the null device, as `2>&-` and some supervisors close it.

    Else the next file that is opened gets its number, and messages would be written into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _show_half_characters() -> None:
    """Print half a character of a stored text as JSON escapes it, instead of failing."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _show_usage(error: click.UsageError) -> None:
    """Print what `error.show` does before its message, which here begins as every error of these programs does."""
    if error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
        echo(f"Try '{error.ctx.command_path} --help' for help.", err=True)


def _require_characters(arguments: list[str]) -> None:
    """Refuse arguments that are not UTF-8, or that the locale reads otherwise, unless they name a file."""
    for argument in arguments:
        raw = os.fsencode(argument)
        if (locale := sys.getfilesystemencoding()) != "utf-8" and not os.path.lexists(argument) and _is_utf_8(raw):
            raise InputError(
                f"argument {raw!r}: is UTF-8, and the locale makes Python read it as {locale}; expected a locale of "
                "UTF-8: set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
            )
        try:
            argument.encode()
        except UnicodeEncodeError:
            if os.path.lexists(argument):
                continue
            raise InputError(
                f"argument {raw!r}: its bytes are not UTF-8, perhaps GBK; expected UTF-8: set the "
                "terminal, or convert the script (iconv -f GBK -t UTF-8)"
            ) from None


def _is_utf_8(raw: bytes) -> bool:
    from care_qdrant.corpus.streams import is_chinese_utf_8  # slow to import, and hardly ever needed

    return is_chinese_utf_8(raw)


def _drop_unwritten_output() -> None:
    """Send output that could not be written to the null device; Python would fail on it once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, exit_code: int) -> None:
    log_error(message)
    sys.exit(exit_code)
