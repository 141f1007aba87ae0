"""``care doctor``: show what a collection is, and what attaching to it would do."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import Command
from care_qdrant.console.options import LoadModel, Target, json_option, model_options, target_options
from care_qdrant.errors import InputError

if TYPE_CHECKING:
    from care_qdrant.vectors.doctor import Diagnosis


@click.command(cls=Command, name="doctor")
@click.argument("collection")
@target_options
@model_options()
@json_option
def command(collection: str, target: Target, load_model: LoadModel, as_json: bool) -> None:
    """Show what COLLECTION holds, who wrote it, and what care attach would do, cost and refuse. Write nothing.

    The exit code is 2 where care attach would refuse.

    \b
    Example:
      care doctor articles --url http://localhost:6333
      care doctor articles --url http://localhost:6333 --json
    """
    from care_qdrant.vectors.doctor import diagnose

    model = load_model()
    with target.open() as client:
        found = diagnose(client, collection, model)
    if as_json:
        click.echo(json.dumps(asdict(found), ensure_ascii=False, indent=2))
    else:
        click.echo("\n".join(_lines(found)))
    if found.refusals:
        sys.exit(InputError.exit_code)


def _lines(found: "Diagnosis") -> Iterator[str]:
    summary = found.summary
    aliases = f", aliases: {', '.join(summary.aliases)}" if summary.aliases else ""
    yield f"{summary.name}: {summary.points:,} points, server {found.server_version}{aliases}"
    for vector in summary.vectors:
        shape = f"{vector.dim} {vector.distance}" if vector.dim else "terms"
        made_by = f"{vector.made_by} ({(vector.fingerprint or '')[:12]})" if vector.made_by else "another tool"
        yield f"  vector {vector.name or '(unnamed)'}: {vector.kind}, {shape}, {vector.points:,} points, by {made_by}"
    for name, value in found.strict_mode.items():
        yield f"  strict mode: {name} = {value}"
    if found.tool is not None:
        yield f"  payloads of {found.tool}: {found.evidence}"
    for text in found.texts:
        yield f"    {' '.join(text.split())}…"
    if found.sampled_without_text:
        yield f"  {found.sampled_without_text} of {found.sampled} sampled points have no text and would get no vector"
    yield from _attach_lines(found)


def _attach_lines(found: "Diagnosis") -> Iterator[str]:
    name = found.summary.name
    if found.refusals:
        yield f"care attach {name} would refuse:"
        yield from (f"  - {refusal}" for refusal in found.refusals)
        if found.copy_plan:
            yield f"care attach {name} --via copy would do this:"
            yield from (f"  - {step}" for step in found.copy_plan)
    else:
        yield (
            f"care attach {name} would give vector {found.vector_name!r} of {found.model} to at most "
            f"{found.points_to_encode:,} points: {found.new_bytes / 1e6:,.1f} MB"
        )
    yield from (f"  note: {notice}" for notice in found.notices)
