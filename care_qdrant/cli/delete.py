"""``care delete``: delete a collection, after a question."""

import sys

import click

from care_qdrant.console.options import Target, target_options


@click.command(name="delete")
@click.argument("collection")
@click.option("--yes", "is_confirmed", is_flag=True, help="Ask nothing; needed where no terminal can be asked.")
@target_options
def command(collection: str, is_confirmed: bool, target: Target) -> None:
    """Delete COLLECTION with all of its points, vectors and aliases.

    It says what would be lost, and asks for the name. An alias is refused: the collection behind it is to be named.

    \b
    Example:
      care delete old-articles --url http://localhost:6333
      care delete old-articles --yes
    """
    from care_qdrant.errors import InputError
    from care_qdrant.qdrant.collection import Collection

    with target.open() as client:
        found = Collection(client, collection).resolve()
        if found.name != collection:
            raise InputError(
                f"{collection!r} is an alias of collection {found.name!r}; to delete that one, name it: "
                f"care delete {found.name}"
            )
        schema = found.schema
        vectors = ", ".join(name or "(unnamed)" for name in (*schema.dense, *schema.sparse)) or "none"
        aliases = sorted(alias for alias, behind in found.aliases().items() if behind == found.name)
        lost = f"{found.count():,} points, vectors: {vectors}"
        if aliases:
            lost += f"; these aliases will lead nowhere: {', '.join(aliases)}"
        click.echo(f"{found.name} in {target}: {lost}", err=True)
        if not is_confirmed:
            _ask(found.name)
        found.drop()
    click.echo(f"deleted {found.name}")


def _ask(name: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"nothing was deleted: confirm with --yes that {name!r} is to go")
    typed = click.prompt("Type the name of the collection to delete it", default="", show_default=False, err=True)
    if typed != name:
        raise click.UsageError(f"nothing was deleted: {typed!r} is not {name!r}")
