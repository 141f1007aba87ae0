"""Options and output that the scripts share: each saves its result with the machine it was measured on."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from care_benchmarks.machine import describe_machine

T = TypeVar("T")

output_option = click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file for the result."
)
scratch_option = click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the databases.  [default: a temporary one]",
)


def shown(result: T) -> T:
    """Print a result to stderr as soon as it is measured, and return it."""
    click.echo(result, err=True)
    return result


def plain(results: Sequence[Any]) -> list[dict[str, Any]]:
    """Return dataclasses as JSON writes them."""
    return [asdict(result) for result in results]


def save_measured(output: Path, result: dict[str, Any]) -> None:
    """Write a result with the machine it was measured on, and print all of it except its lists."""
    output.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": asdict(describe_machine()), **result}
    output.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    summary = {key: value for key, value in result.items() if not isinstance(value, list)}
    click.echo(json.dumps(summary, ensure_ascii=False))
