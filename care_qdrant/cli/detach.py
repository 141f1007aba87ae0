"""``care detach``: remove what ``care attach`` added."""

import click

from care_qdrant.console.groups import Command
from care_qdrant.console.options import Target, target_options
from care_qdrant.console.reports import show_report


@click.command(cls=Command, name="detach")
@click.argument("collection")
@click.option("--vector-name", help="Vector to remove.  [default: the one that was attached]")
@click.option("--all", "is_all", is_flag=True, help="Remove every vector that was attached.")
@target_options
def command(collection: str, vector_name: str | None, is_all: bool, target: Target) -> None:
    """Remove from COLLECTION a vector that was attached, with its contract and our key in the payloads.

    The other vectors and the rest of the payloads stay as they are. Vectors of other tools are never removed. One line
    of JSON on stdout for each vector that was removed.

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
        for name in tuple(attached) or (vector_name,):
            report = detach_vector(client, collection, name)
            show_report(report)
