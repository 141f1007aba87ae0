"""What the programs log on stderr: how much of it, and in which form."""

import json
import logging
import time
from typing import Any

import click
from typing_extensions import override

from care_qdrant.console.options import add_options
from care_qdrant.errors import redact

_LOGGERS = ("care_qdrant", "care_trainer", "care_benchmarks", "care_data", "llama_index.embeddings.care")


class _JsonLines(logging.Formatter):
    """One JSON object a line, for schedulers and log collectors."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        entry = {"time": stamp, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _Stderr(logging.Handler):
    """Writes to the stderr of the moment, which a test or a progress bar may have replaced and closed."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            click.echo(self.format(record), err=True)
        except Exception:
            self.handleError(record)


_handler = _Stderr()


def set_up_logs(level: int = logging.INFO, form: str = "text") -> None:
    """Send the messages of this project's packages to stderr."""
    _handler.setFormatter(_JsonLines() if form == "json" else logging.Formatter("%(message)s"))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if _handler not in logger.handlers:
            logger.addHandler(_handler)


def log_error(message: str) -> None:
    """Print an error that ends a program, in the form of its log."""
    if isinstance(_handler.formatter, _JsonLines):
        record = logging.LogRecord("care_qdrant", logging.ERROR, "", 0, "%s", (message,), None)
        click.echo(_handler.format(record), err=True)
    else:
        click.echo(f"error: {redact(message)}", err=True)


def _apply(ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    # Each of the three options calls this; what the others said is remembered at the top.
    said = ctx.find_root().meta.setdefault("care_qdrant.logs", {"verbose": False, "quiet": False, "form": "text"})
    name = _parameter.name or ""
    said["form" if name == "log_format" else name] = value or said["form" if name == "log_format" else name]
    level = logging.DEBUG if said["verbose"] else logging.WARNING if said["quiet"] else logging.INFO
    set_up_logs(level, said["form"])
    return value


log_options = add_options(
    click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_apply, help="Log more, on stderr."),
    click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_apply, help="Log only warnings."),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        expose_value=False,
        callback=_apply,
        help="Form of the log on stderr.  [default: text]",
    ),
)
