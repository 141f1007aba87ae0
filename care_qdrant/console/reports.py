"""The report of a command: as text, or with --json as one JSON document."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

import click

from care_qdrant.console.options import Target, typed_model
from care_qdrant.console.text import echo, harmless


def printed(report: Any) -> dict[str, Any]:
    """Return a report as it is printed, with selected fields of an inner report in place of that report."""
    inner = {field.name: field.metadata["printed"] for field in fields(report) if "printed" in field.metadata}
    return {
        key: shown
        for name, value in asdict(report).items()
        for key, shown in ({part: value[part] for part in inner[name]} if name in inner else {name: value}).items()
    }


def show_report(report: Any, *, as_json: bool = False) -> None:
    """Print the report of a command, a dataclass or a mapping: as JSON, or a line for each value that is not empty."""
    values = report if isinstance(report, Mapping) else printed(report)
    if as_json:
        show_json(values)
        return
    typed = () if isinstance(report, Mapping) else fields(report)
    fractions = {field.name for field in typed if field.metadata.get("unit") == "fraction"}
    lines = _lines({key: _percent(value) if key in fractions else value for key, value in values.items()})
    echo("\n".join(lines))


def show_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    line = json.dumps(value, ensure_ascii=False, default=float)
    # JSON has no NaN and no Infinity, which a payload of the embedded database may hold.
    value = json.loads(line, parse_constant=lambda _: None)
    # The path of a file may hold bytes that are not UTF-8: in JSON they are escapes.
    line = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    click.echo(harmless(line))


def search_command(collection: str, target: Target, model: str | None = None) -> str:
    """Return the command that searches a collection; without a model, with the one that was typed for this command."""
    model = typed_model() if model is None else model
    parts = ["care", "search", '"…"', "--collection", shlex.quote(collection)]
    if model is not None:
        parts += ["--model", shlex.quote(model)]
    return " ".join([*parts, *target.options_of("search")])


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        name = f"{indent}{key.replace('_', ' ')}"
        if key.endswith("_fraction"):
            name, value = name.removesuffix(" fraction"), _percent(value)
        if isinstance(value, Mapping) and value:
            yield name
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list | tuple) and value:
            yield f"{name:<28} {'; '.join(map(_shown, value))}"
        elif value not in (None, "", [], (), {}):
            yield f"{name:<28} {_shown(value)}"


def _percent(fraction: Any) -> Any:
    """Return a fraction as a percentage; anything but a float unchanged."""
    return f"{fraction:.1%}" if isinstance(fraction, float) else fraction


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_shown(part)}" for key, part in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
