"""``care collections``: list the collections of a Qdrant."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import Command
from care_qdrant.console.options import Target, json_option, target_options

if TYPE_CHECKING:
    from care_qdrant.vectors.doctor import CollectionSummary

_ANY_WIDTH = 10_000
"""Of a line in a pipe, where a program may read it."""


@click.command(cls=Command, name="collections")
@target_options
@json_option
def command(target: Target, as_json: bool) -> None:
    """List the collections, their vectors, the models that made them, and how many points have each.

    \b
    Example:
      care collections
      care collections --url http://localhost:6333 --json
    """
    from care_qdrant.errors import next_command
    from care_qdrant.vectors.doctor import describe_all

    with target.open() as client:
        collections = describe_all(client)
    if as_json:
        click.echo(json.dumps([asdict(collection) for collection in collections], ensure_ascii=False, indent=2))
    elif collections:
        click.echo(_table(collections))
        for unfinished in filter(None, (collection.unfinished for collection in collections)):
            click.echo(f"note: {unfinished}", err=True)
    else:
        click.echo(f"{target}: no collections yet; make one, " + next_command("care ingest corpus.jsonl"))


def _table(collections: "list[CollectionSummary]") -> str:
    from care_qdrant.console.table import table

    rows = []
    for collection in collections:
        aliases = f" ({', '.join(collection.aliases)})" if collection.aliases else ""
        rows.append([collection.name + aliases, str(collection.points), *[""] * 6])
        for vector in collection.vectors:
            made_by, fingerprint = vector.made_by or "another tool", vector.fingerprint or ""
            shape = [vector.kind, str(vector.dim or ""), vector.distance or ""]
            rows.append(["", str(vector.points), vector.name or "(unnamed)", *shape, made_by, fingerprint])
    columns = ["collection", "points", "vector", "kind", "dim", "distance", "made by", "fingerprint"]
    return table(columns, rows, width=None if sys.stdout.isatty() else _ANY_WIDTH)
