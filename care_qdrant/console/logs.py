"""The log of the programs on stderr: how much of it, and in which form."""

import json
import logging
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click
from typing_extensions import override

from care_qdrant.console.groups import Option
from care_qdrant.console.text import echo, harmless
from care_qdrant.errors import redact

_LOGGERS = ("care_qdrant", "care_trainer", "care_benchmarks", "care_data", "llama_index.embeddings.care")
_LIBRARIES = ("asyncio", "uvicorn")
"""Loggers of libraries whose warnings are printed in the same form; otherwise the libraries print them."""


class _JsonLines(logging.Formatter):
    """One JSON object a line, for schedulers and log collectors."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        entry = {"time": stamp, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _Lines(logging.Formatter):
    """One line for the message of a record, and its traceback below; a text in it cannot begin another line."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return level + super().formatMessage(record).replace("\n", "\\n")


class _Stderr(logging.Handler):
    """Writes to the stderr of the moment, which a test or a progress bar may have replaced and closed."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            with bars_cleared():
                _write(self.format(record))
        except Exception:
            self.handleError(record)


def bars_cleared() -> AbstractContextManager[None]:
    """Take the progress bars off the terminal while a line is written, and paint them again below it."""
    tqdm = sys.modules.get("tqdm")  # without it there is no bar, and it need not be imported for a line
    if tqdm is None:
        return nullcontext()
    # Its lock is shared by processes: one that is killed while it logs would hold it for ever.
    cleared: AbstractContextManager[None] = tqdm.tqdm.external_write_mode(file=sys.stderr, nolock=True)
    return cleared


_handler = _Stderr()


def _write(line: str) -> None:
    """Print a line of the log; a JSON object is not wrapped."""
    if isinstance(_handler.formatter, _JsonLines):
        click.echo(harmless(line), err=True)
    else:
        echo(line, err=True)


def set_up_logs(level: int = logging.INFO) -> None:
    """Send the messages of this project's packages to stderr."""
    is_json = os.environ.get("CARE_LOG_FORMAT") == "json"
    _handler.setFormatter(_JsonLines() if is_json else _Lines("%(message)s"))
    for name in (*_LOGGERS, *_LIBRARIES):
        logger = logging.getLogger(name)
        logger.setLevel(level if name in _LOGGERS else max(level, logging.WARNING))
        if _handler not in logger.handlers:
            logger.addHandler(_handler)


def log_error(message: str) -> None:
    """Print an error that ends a program, in the form of its log."""
    if isinstance(_handler.formatter, _JsonLines):
        record = logging.LogRecord("care_qdrant", logging.ERROR, "", 0, "%s", (message,), None)
        _write(_handler.format(record))
    else:
        _write(f"error: {redact(message)}")


def _apply(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    level = logging.INFO if value is None else logging.DEBUG if value else logging.WARNING
    set_up_logs(level)
    return value


log_options = click.option(
    "-v/-q",
    "--verbose/--quiet",
    cls=Option,
    default=None,
    expose_value=False,
    callback=_apply,
    help="Log more on stderr, or only warnings.",
    environment={"CARE_LOG_FORMAT": "Log format: text, or json with one object a line. [default: text]"},
)
