"""What the commands that measure one thing share: an option for the result, and saving it with the machine."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

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
    """Show a result on stderr as soon as it is there, and give it back."""
    click.echo(result, err=True)
    return result


def plain(results: Sequence[Any]) -> list[dict[str, Any]]:
    """Give dataclasses as JSON writes them."""
    return [asdict(result) for result in results]


def save_measured(output: Path, result: dict[str, Any]) -> None:
    """Write a result with the machine it was measured on; all of it but its lists goes to stdout."""
    from care_benchmarks.machine import describe_machine

    output.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": asdict(describe_machine()), **result}
    output.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    summary = {key: value for key, value in result.items() if not isinstance(value, list)}
    click.echo(json.dumps(summary, ensure_ascii=False))
