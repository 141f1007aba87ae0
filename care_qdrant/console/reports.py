"""The report of a command: for people on a terminal, as JSON in a pipe."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from care_qdrant.console.configuration import default_of
from care_qdrant.console.options import Target


def show_report(report: Any) -> None:
    """Print a dataclass that says what a command did: a line for each field with a value; in a pipe one of JSON."""
    values = asdict(report)
    lines = _lines(values) if sys.stdout.isatty() else [json.dumps(values, ensure_ascii=False)]
    click.echo("\n".join(lines))


def search_command(collection: str, target: Target, model: str | None = None) -> str:
    """Return the command that asks a collection; without a model, with the one that was given to this command."""
    context = click.get_current_context()
    if model is None and context.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE:
        model = context.params["model"]
    parts = ["care", "search", '"…"', "--collection", shlex.quote(collection)]
    if model is not None:
        parts += ["--model", shlex.quote(model)]
    return " ".join([*parts, *_target_words(target, "search")])


def _target_words(target: Target, command: str) -> list[str]:
    """Return the options by which a command reaches a database; none where it reaches it without any."""
    url, path = os.environ.get("QDRANT_URL"), None
    if not url:
        url, path = default_of(command, "url"), default_of(command, "path")
    found = (None, str(url)) if url and not path else (str(path or "qdrant"), None)
    if found == (None if target.path is None else str(target.path), target.url):
        return []
    return ["--url" if target.url else "--path", shlex.quote(str(target))]


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        name = f"{indent}{key.replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            yield name
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list | tuple) and value:
            yield f"{name:<28} {'; '.join(map(_shown, value))}"
        elif value not in (None, "", [], (), {}):
            yield f"{name:<28} {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_shown(one)}" for key, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
