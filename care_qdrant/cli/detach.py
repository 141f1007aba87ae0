"""``care detach``: remove what ``care attach`` added."""

from dataclasses import asdict

import click

from care_qdrant.console.groups import Command
from care_qdrant.console.options import Target, json_option, target_options
from care_qdrant.console.reports import show_json, show_report


@click.command(cls=Command, name="detach")
@click.argument("collection")
@click.option("--vector-name", help="Vector to remove.  [default: the one that was attached]")
@click.option("--all", "is_all", is_flag=True, help="Remove every vector that was attached.")
@target_options
@json_option
def command(collection: str, vector_name: str | None, is_all: bool, target: Target, as_json: bool) -> None:
    """Remove an attached vector from COLLECTION, with its model record and its hashes in the payloads.

    Other vectors and the rest of the payloads stay as they are. Vectors of other tools are never removed. The document
    of --json is a list with one report for each removed vector.

    \b
    Example:
      care detach articles --all --url http://localhost:6333
    """
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.detach import detach_vector

    if is_all and vector_name is not None:
        raise click.UsageError("--all removes every attached vector: leave out --vector-name")
    with target.open() as client:
        attached = Collection(client, collection).resolve().schema.attached if is_all else ()
        reports = []
        for name in tuple(attached) or (vector_name,):
            reports.append(detach_vector(client, collection, name))
            if not as_json:
                show_report(reports[-1])
    if as_json:
        show_json([asdict(report) for report in reports])
