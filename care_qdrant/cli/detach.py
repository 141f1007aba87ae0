"""``care detach``: remove what ``care attach`` added."""

import json
from dataclasses import asdict

import click

from care_qdrant.cli.options import Target, target_options


@click.command(name="detach")
@click.argument("collection")
@click.option("--vector-name", help="Vector to remove.  [default: the one that was attached]")
@target_options
def command(collection: str, vector_name: str | None, target: Target) -> None:
    """Remove from COLLECTION a vector that was attached, with its contract and our key in the payloads.

    The other vectors and the rest of the payloads stay as they are. Vectors of other tools are never removed.

    \b
    Example:
      care detach articles --url http://localhost:6333
    """
    from care_qdrant.attach.detach import detach_vector

    with target.open() as client:
        report = detach_vector(client, collection, vector_name)
    click.echo(json.dumps(asdict(report), ensure_ascii=False))
