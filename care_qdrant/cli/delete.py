"""``care delete``: delete a collection after a confirmation."""

import sys

import click

from care_qdrant.console.groups import CONTEXT, Command
from care_qdrant.console.options import Target, json_option, target_options
from care_qdrant.console.reports import show_json
from care_qdrant.console.text import echo
from care_qdrant.errors import counted


@click.command(cls=Command, name="delete", context_settings=CONTEXT)
@click.argument("collection")
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask for confirmation; required in a script.")
@target_options
@json_option
def command(collection: str, is_confirmed: bool, target: Target, as_json: bool) -> None:
    """Delete COLLECTION with all of its points, vectors and aliases.

    It first shows what will be deleted and asks for the name of the collection. An alias is refused: name the
    collection behind it.

    \b
    Example:
      care delete old-articles --url http://localhost:6333
      care delete old-articles --yes
    """
    from care_qdrant.errors import InputError
    from care_qdrant.qdrant.collection import Collection

    with target.open() as client:
        resolved = Collection(client, collection).resolve()
        if resolved.name != collection:
            raise InputError(
                f"{collection!r} is an alias of collection {resolved.name!r}; to delete that one, name it: "
                f"care delete {resolved.name}"
            )
        schema = resolved.schema
        points, vectors = resolved.count(), [*schema.dense, *schema.sparse]
        aliases = sorted(alias for alias, behind in resolved.aliases().items() if behind == resolved.name)
        lost = f"{counted(points, 'point')}, vectors: {', '.join(name or '(unnamed)' for name in vectors) or 'none'}"
        if aliases:
            lost += f", aliases: {', '.join(aliases)}"
        echo(f"{resolved.name} in {target}: {lost}", err=True)
        if not is_confirmed:
            _ask(resolved.name)
        resolved.drop()
    if as_json:
        show_json({"collection": resolved.name, "points": points, "vectors": vectors, "aliases": aliases})
    else:
        echo(f"deleted {resolved.name}: {lost}")


def _ask(name: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"nothing was deleted: add --yes to delete {name!r} without a question")
    typed = click.prompt("Type the name of the collection to delete it", default="", show_default=False, err=True)
    if typed != name:
        raise click.UsageError(f"nothing was deleted: {typed!r} is not {name!r}")
